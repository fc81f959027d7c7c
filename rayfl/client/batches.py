"""Which samples each optimiser step of a client sees. All trainers use this, so they all see the same batches."""

import numpy as np

from rayfl.config import LocalConfig


def samples_seen(n: np.ndarray, local: LocalConfig) -> np.ndarray:
    """Return how many samples clients with `n` samples process in one round: the cost of their training.

    >>> samples_seen(np.array([20, 500]), LocalConfig(steps=10, batch_size=32)).tolist()
    [200, 320]
    """
    if local.epochs is not None:
        return local.epochs * n
    assert local.steps is not None  # the config fills one of the two
    return local.steps * np.minimum(n, local.batch_size)


def largest_batch(n: np.ndarray, local: LocalConfig) -> int:
    """Return the size of a full batch: local.batch_size, or less if no client has that many samples.

    >>> largest_batch(np.array([20, 30]), LocalConfig(steps=10, batch_size=32))
    30
    """
    return min(local.batch_size, int(n.max()))


def batch_sizes(n: np.ndarray, local: LocalConfig) -> set[int]:
    """Return the sizes of all batches that clients with `n` samples each will see.

    >>> sorted(batch_sizes(np.array([20, 500, 500, 65]), LocalConfig(epochs=1, batch_size=32)))
    [20, 32]
    """
    counts = np.unique(n)
    sizes = np.minimum(counts, local.batch_size)
    left = counts % sizes if local.epochs is not None else np.zeros_like(counts)
    return {*sizes.tolist(), *left[left > 1].tolist()}


def draw_batches(rng: np.random.Generator, n: int, local: LocalConfig) -> list[np.ndarray]:
    """Return the positions (0 to n - 1) of each step's batch.

    With `local.steps`, every batch is full (or the whole data set, if that is smaller), and each pass through the data
    has a new random order. With `local.epochs`, the last batch of a pass holds the remaining samples; a single
    remaining sample is skipped, because batch norm cannot be trained on one.

    >>> [b.size for b in draw_batches(np.random.default_rng(0), 65, LocalConfig(epochs=1, batch_size=32))]
    [32, 32]
    """
    size = min(local.batch_size, n)
    if local.epochs is not None:
        batches = []
        for _ in range(local.epochs):
            order = rng.permutation(n)
            cuts = [order[i : i + size] for i in range(0, n, size)]
            batches += cuts[:-1] if len(cuts) > 1 and cuts[-1].size == 1 else cuts
        return batches
    assert local.steps is not None  # the config fills one of the two
    needed = local.steps * size
    stream = np.concatenate([rng.permutation(n) for _ in range(-(-needed // n))])[:needed]
    return list(stream.reshape(local.steps, size))
