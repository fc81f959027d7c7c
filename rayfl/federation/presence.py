"""Since when each client is there, and in which rounds it is available: plain data, settled before the first round."""

from dataclasses import dataclass

import numpy as np

from rayfl.config import MOST

#: The round of those who arrive only after training.
AFTER_TRAINING = MOST + 1


@dataclass(frozen=True)
class Trace:
    """Who is available in which round, as flat arrays: in the first, `clients[offsets[0] : offsets[1]]`.

    >>> trace = Trace(np.array([4, 7, 9]), np.array([0, 2, 3]))
    >>> [trace.available(round).tolist() for round in (1, 2, 3)]
    [[4, 7], [9], [4, 7]]
    """

    clients: np.ndarray
    offsets: np.ndarray

    @property
    def rounds(self) -> int:
        """How many rounds there are before it begins again."""
        return len(self.offsets) - 1

    def available(self, round: int) -> np.ndarray:
        """Return who is available in a round, counted from 1."""
        at = (round - 1) % self.rounds
        return self.clients[self.offsets[at] : self.offsets[at + 1]]


@dataclass(frozen=True)
class Presence:
    """The round from which on each client is there (0: from the start), and who of them is available when."""

    arrives: np.ndarray  # (m,)
    trace: Trace | None = None

    @classmethod
    def of_all(cls, clients: int) -> "Presence":
        """Everybody is always there."""
        return cls(np.zeros(clients, np.int64))

    def there(self, round: int) -> np.ndarray:
        """Return the clients that are there in a round, whether or not they are available."""
        return np.flatnonzero(self.arrives <= round)

    def available(self, round: int) -> np.ndarray:
        """Return the clients that can take part in a round."""
        if self.trace is None:
            return self.there(round)
        clients = self.trace.available(round)
        return clients[self.arrives[clients] <= round]

    def arriving(self, round: int) -> np.ndarray:
        """Return the newcomers of a round."""
        return np.flatnonzero(self.arrives == round)
