"""The round in which each client arrives, and the rounds in which it is available: plain data, fixed before round 1."""

from dataclasses import dataclass

import numpy as np

from rayfl.config import MOST

#: The round of arrival of clients that arrive only after training.
AFTER_TRAINING = MOST + 1


@dataclass(frozen=True)
class Trace:
    """The clients available in each round, as flat arrays: in round 1, these are `clients[offsets[0] : offsets[1]]`.

    >>> trace = Trace(np.array([4, 7, 9]), np.array([0, 2, 3]))
    >>> [trace.available(round).tolist() for round in (1, 2, 3)]
    [[4, 7], [9], [4, 7]]
    """

    clients: np.ndarray
    offsets: np.ndarray

    @property
    def rounds(self) -> int:
        """The number of rounds before the trace begins again."""
        return len(self.offsets) - 1

    def available(self, round: int) -> np.ndarray:
        """Return the clients that are available in a round, counted from 1."""
        at = (round - 1) % self.rounds
        return self.clients[self.offsets[at] : self.offsets[at + 1]]


@dataclass(frozen=True)
class Presence:
    """The round in which each client arrives (0: there from the start), and when each client is available."""

    arrives: np.ndarray  # (m,)
    trace: Trace | None = None

    @classmethod
    def of_all(cls, clients: int) -> "Presence":
        """Everybody is always there."""
        return cls(np.zeros(clients, np.int64))

    def there(self, round: int) -> np.ndarray:
        """Return the clients that have arrived by a round, whether or not they are available."""
        return np.flatnonzero(self.arrives <= round)

    def available(self, round: int) -> np.ndarray:
        """Return the clients that can take part in a round."""
        if self.trace is None:
            return self.there(round)
        clients = self.trace.available(round)
        return clients[self.arrives[clients] <= round]

    def arriving(self, round: int) -> np.ndarray:
        """Return the clients that arrive in a round."""
        return np.flatnonzero(self.arrives == round)
