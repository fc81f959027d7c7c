"""Dealing from one pool of samples per class: clients get their sizes, in the proportions that they want.

When a pool is empty, clients get more of their other classes. All of it is whole-number arithmetic on arrays of
clients, so 100,000 clients take seconds and sums are exact.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rayfl.config.partition import PartitionConfig, SizedPartition
from rayfl.data.partition.counting import rank, share_out
from rayfl.errors import InputError


@dataclass(frozen=True)
class Wish:
    """Which classes clients want: `amounts` (clients, classes) in proportion.

    If clients may have only some classes, `allowed` says which; with `labels_each`, a client must have each of them.
    """

    amounts: np.ndarray
    allowed: np.ndarray | None = None
    labels_each: int = 0


class Deal:
    """Counts per client and class that respect sizes, pools and allowed classes."""

    wish: Wish

    def __init__(
        self, config: PartitionConfig, pools: np.ndarray, rng: np.random.Generator, sized: bool | None = None
    ) -> None:
        """`sized`: whether the config asks for sizes; default: whether it has partition.samples."""
        self.config = config
        self.pools = pools
        self.rng = rng
        self.samples = config.samples if isinstance(config, SizedPartition) else None
        self.sized = self.samples is not None if sized is None else sized

    def fill(self, sizes: np.ndarray, floors: np.ndarray) -> np.ndarray:
        """Give every client its size, or less where its classes are too scarce, but never less than its floor.

        Sizes that the config does not ask for are only as even as possible, and then no sample is left over.
        """
        # Serve all at once; only if this leaves a client below its floor, serve the floors first.
        for stages in ([sizes], [floors, sizes - floors]):
            fixed = self._start()
            for number, stage in enumerate(stages):
                deficit = stage - fixed.sum(1) if number == 0 else stage.copy()
                self._grow(deficit)
                if self.sized or stage is floors:  # sizes that were not asked for need not be met
                    self._reroute(deficit)
            counts = self.counts + fixed
            if (counts.sum(1) >= floors).all():
                return counts if self.sized else counts + self._left_over()
        raise self._failure(counts.sum(1), floors)

    def _left_over(self) -> np.ndarray:
        """Share out the few samples that the rounding of sizes left over, among the clients that may have them."""
        extra = np.zeros_like(self.counts)
        allowed = self.wish.allowed
        for c in np.flatnonzero(self.spare):
            if allowed is not None and allowed[:, c].any():
                extra[:, c] = share_out(allowed[:, c].astype(np.int64), int(self.spare[c]), self.rng)
        return extra

    def _start(self) -> np.ndarray:
        """Start from nothing; return what is fixed beforehand: one sample of each class that a client must have."""
        amounts, allowed = self.wish.amounts, self.wish.allowed
        fixed = np.zeros(amounts.shape, dtype=np.int64)
        if allowed is not None and self.wish.labels_each:
            fixed += allowed
        self.spare = self.pools - fixed.sum(0)
        self.counts = np.zeros_like(fixed)
        self.weights = whole(amounts, int(self.pools.sum()))
        return fixed

    def _grow(self, deficit: np.ndarray) -> None:
        """Serve deficits by wish from the pools with samples; every pass serves all of them or empties a pool."""
        while True:
            rows = np.flatnonzero(deficit)
            open_pools = self.spare > 0
            weights = self.weights[rows] * open_pools
            # Clients whose wanted classes are all used up get other classes that they may have.
            lost = ~weights.any(axis=1)
            if lost.any():
                allowed = self.wish.allowed
                weights[lost] = self.spare if allowed is None else allowed[rows[lost]] * self.spare
            can = weights.any(axis=1)
            rows, weights = rows[can], weights[can]
            if not len(rows):
                return
            given = share_out(weights, deficit[rows], self.rng)
            asked = given.sum(0)
            for c in np.flatnonzero(asked > self.spare):
                given[:, c] = share_out(given[:, c], int(self.spare[c]), self.rng)
            self.counts[rows] += given
            deficit[rows] -= given.sum(1)
            self.spare -= given.sum(0)

    def _reroute(self, deficit: np.ndarray) -> None:
        """Free scarce classes by chains of exchanges (augmenting paths of a maximum flow, over classes).

        A client that may have a plentiful class takes it and gives up a scarce one, and so on until the class that is
        given up is one that a client in deficit may have. If no chain is left, no other deal could serve more.
        """
        allowed = self.wish.allowed
        if allowed is None:
            return
        may = allowed.astype(np.int64)
        # movable[a, b]: samples of class a whose holders may have class b. As floats, for the speed of BLAS; exact.
        movable = self.counts.T.astype(np.float64) @ allowed.astype(np.float64) if deficit.any() else np.zeros(0)
        while deficit.any():
            path = _chain(may[deficit > 0].sum(axis=0) > 0, movable > 0, self.spare > 0)
            if path is None:
                return
            steps = list(pairwise(path))
            hungry = deficit * may[:, path[0]]
            edges = [int(movable[a, b]) for a, b in steps]
            amount = min(int(hungry.sum()), int(self.spare[path[-1]]), *edges)
            for a, b in reversed(steps):
                moved = share_out(self.counts[:, a] * may[:, b], amount, self.rng)
                self.counts[:, a] -= moved
                self.counts[:, b] += moved
            served = share_out(hungry, amount, self.rng)
            self.counts[:, path[0]] += served
            deficit -= served
            self.spare[path[-1]] -= amount
            for a in path:
                movable[a] = self.counts[:, a] @ may

    def _failure(self, got: np.ndarray, floors: np.ndarray) -> InputError:
        assert self.wish.allowed is not None  # clients that may have anything are always served
        client = int(np.argmax(got < floors))
        classes = np.flatnonzero(self.wish.allowed[client])
        rivals = int(self.wish.allowed[:, classes].any(axis=1).sum())
        config = self.config
        what = f"samples={self.samples}" if self.samples else "quantity" if self.sized else f"clients={config.clients}"
        return InputError(
            f"partition.{what} cannot be met by partition.kind={config.kind}: client {client} needs"
            f" {floors[client]} samples of classes {classes.tolist()}, of which {rivals} clients share"
            f" {self.pools[classes].sum()}, and gets {got[client]}: use fewer samples, fewer clients or more"
            " classes per client"
        )


def _chain(sources: np.ndarray, edges: np.ndarray, targets: np.ndarray) -> list[int] | None:
    """Return a shortest path of classes from a source to a target, or None."""
    parent = {int(c): -1 for c in np.flatnonzero(sources)}
    queue = list(parent)
    for node in queue:
        if targets[node]:
            path = [node]
            while parent[path[-1]] >= 0:
                path.append(parent[path[-1]])
            return path[::-1]
        for following in np.flatnonzero(edges[node]):
            if int(following) not in parent:
                parent[int(following)] = node
                queue.append(int(following))
    return None


def take(counts: np.ndarray, pool: np.ndarray, pool_labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn counts into samples, sorted by client: each class is shuffled and dealt in the order of clients."""
    shuffled = rng.permutation(len(pool))
    shuffled = shuffled[np.argsort(pool_labels[shuffled], kind="stable")]
    sizes = np.bincount(pool_labels, minlength=counts.shape[1])
    dealt = pool[shuffled[rank(sizes) < np.repeat(counts.sum(0), sizes)]]
    client = np.repeat(np.tile(np.arange(len(counts)), counts.shape[1]), counts.T.ravel())
    return dealt[np.argsort(client, kind="stable")]


def whole(proportions: np.ndarray, largest_total: int) -> np.ndarray:
    """Scale each row of proportions to whole weights, as fine as `share_out` takes without overflow."""
    cells = proportions.shape[-1]
    bits = min(30, 61 - math.ceil(math.log2(cells + 1)) - math.ceil(math.log2(largest_total + 1)))
    peak = proportions.max(axis=-1, keepdims=True)
    return np.rint(proportions / np.where(peak > 0, peak, 1) * 2.0**bits).astype(np.int64)
