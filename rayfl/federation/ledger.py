"""What a round costs its clients: bytes sent and received, models held, samples computed; and the seconds it took.

A tensor of a model that a client has already received in this round is not counted again, whatever it is used for.
Costs are also given per client in units of FedAvg (thesis 7.4.5, Table 7.6), where FedAvg has 1 of each:

- models down, models up: what a client receives and sends
- storage: the models that a client receives in the round, and the parts of its own models that it does not receive;
  working copies, gradients and activations do not count
- computation: passes over samples, divided by those of one local training; a forward pass counts 1, a backward pass 2
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

FORWARD, TRAINING = 1, 3  # passes of a sample: forward alone; forward and backward


class Ledger:
    """The costs of one round, added up as they occur."""

    def __init__(self, train_cost: np.ndarray, piece_bytes: np.ndarray) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self.seconds = {"train": 0.0, "eval": 0.0}
        self._train_cost = train_cost  # (m,) samples of one local training of each client
        self._bytes = piece_bytes  # of each piece that a model consists of
        self._has: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}  # model -> (clients, pieces)
        self._held = 0  # bytes that clients hold, over all of them
        self._computed = 0.0  # passes of samples, over all clients
        self._involved = np.zeros(len(train_cost), bool)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `what`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - begin

    def down(self, model: np.ndarray, clients: np.ndarray, pieces: np.ndarray) -> None:
        """Count that these clients receive these pieces of a model, except those they already have."""
        self._involved[clients] = True
        before = self._has.setdefault(_fingerprint(model), [])
        # Pieces that came with the same earlier deliveries are missing on the same clients, so count them together.
        came_with = [tuple(bool(has[piece]) for _, has in before) for piece in np.flatnonzero(pieces)]
        for earlier in set(came_with):
            alike = np.flatnonzero(pieces)[[deliveries == earlier for deliveries in came_with]]
            have = [who for (who, _), came in zip(before, earlier, strict=True) if came]
            missing = len(clients) - (int(np.isin(clients, np.concatenate(have)).sum()) if have else 0)
            received = missing * int(self._bytes[alike].sum())
            self.bytes_down += received
            self._held += received
        before.append((clients, pieces))

    def down_bytes(self, clients: np.ndarray, each: int, new: int) -> None:
        """Count data other than a model: each client holds `each` bytes, and `new` clients receive them now."""
        self._involved[clients] = True
        self.bytes_down += new * each
        self._held += len(clients) * each

    def up(self, clients: np.ndarray, total: int) -> None:
        """Count what these clients send, `total` bytes in all."""
        self._involved[clients] = True
        self.bytes_up += total

    def own(self, clients: int, pieces: np.ndarray) -> None:
        """Count these pieces of a client's own model, for this number of clients: they are stored, nothing travels."""
        self._held += clients * int(self._bytes[pieces].sum())

    def computed(self, clients: np.ndarray, samples: np.ndarray, passes: float) -> None:
        """Count that each of these clients computes `passes` passes over its number of `samples`."""
        self._involved[clients] = True
        self._computed += float(samples.sum()) * passes

    def lost(self, clients: np.ndarray) -> None:
        """Count clients that were lost during the round: each received and computed what the others did on average.

        What a lost client would have sent never arrived, so it is not counted. No client is counted twice.
        """
        others, lost = int(self._involved.sum()), int((~self._involved[clients]).sum())
        if not others:
            return
        self.bytes_down += round(self.bytes_down * lost / others)
        self._held += round(self._held * lost / others)
        self._computed += self._computed * lost / others
        self._involved[clients] = True

    def in_fedavg_units(self) -> dict[str, float]:
        """Return the round's costs per client that took part, in units in which FedAvg costs 1."""
        clients = int(self._involved.sum())
        if not clients:
            return {}
        model = clients * int(self._bytes.sum())
        training = TRAINING * float(self._train_cost[self._involved].sum())
        return {
            "models_down": self.bytes_down / model,
            "models_up": self.bytes_up / model,
            "storage": self._held / model,
            "computation": self._computed / training,
        }


def _fingerprint(model: np.ndarray) -> tuple[int, int]:
    """Return a fingerprint of a model's values, wherever it lies in memory; as fast as reading the values.

    >>> a = np.arange(3, dtype=np.float32)
    >>> _fingerprint(a) == _fingerprint(a.copy()), _fingerprint(a) == _fingerprint(a + 1)
    (True, False)
    """
    words = np.ascontiguousarray(model).view(np.uint32)
    return int(words.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(words))
