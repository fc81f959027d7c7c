"""How unlike clients are: skew of their labels and of their sizes, as pure functions of counts."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Skew:
    """Measures of a partition: 0 if all clients are alike; effective classes are then those of all labels together."""

    jensen_shannon: float
    hellinger: float
    effective_classes: float
    gini: float


def measure_skew(counts: np.ndarray) -> Skew:
    """Return the measures for numbers of samples per client and class (clients, classes).

    Measures of labels are unweighted means over clients.
    """
    return Skew(
        float(jensen_shannon(counts).mean()),
        float(hellinger(counts).mean()),
        float(effective_classes(counts).mean()),
        gini(counts.sum(axis=1)),
    )


def jensen_shannon(counts: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon distance of each client's labels to those of all clients together, from 0 to 1.

    The distance is the square root of the divergence in bits.

    >>> jensen_shannon(np.array([[4, 0], [2, 2]])).round(4).tolist()
    [0.3714, 0.2209]
    """
    mine, all_together = _shares(counts)
    middle = (mine + all_together) / 2
    divergence = (_entropy_to(mine, middle) + _entropy_to(all_together, middle)) / 2
    return np.sqrt(np.maximum(divergence, 0))


def hellinger(counts: np.ndarray) -> np.ndarray:
    """Return the Hellinger distance of each client's labels to those of all clients together, from 0 to 1.

    >>> hellinger(np.array([[4, 0], [2, 2]])).round(4).tolist()
    [0.366, 0.1846]
    """
    mine, all_together = _shares(counts)
    return np.sqrt(((np.sqrt(mine) - np.sqrt(all_together)) ** 2).sum(axis=1) / 2)


def effective_classes(counts: np.ndarray) -> np.ndarray:
    """Return how many classes each client has in effect: two to the entropy of its labels in bits.

    >>> effective_classes(np.array([[4, 0, 0], [2, 2, 0], [1, 1, 1]])).round(9).tolist()
    [1.0, 2.0, 3.0]
    """
    mine, _ = _shares(counts)
    return 2.0 ** -_entropy_to(mine, np.ones_like(mine))


def gini(sizes: np.ndarray) -> float:
    """Return the Gini coefficient of sizes: 0 if all are equal, near 1 if one client has nearly all.

    >>> gini(np.array([1, 3])), gini(np.array([5, 5, 5]))
    (0.25, 0.0)
    """
    ordered = np.sort(np.asarray(sizes, np.float64))
    ranks = np.arange(1, len(ordered) + 1)
    return float(((2 * ranks - len(ordered) - 1) * ordered).sum() / (len(ordered) * ordered.sum()))


def _shares(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of labels of each client, and of all clients together."""
    counts = np.asarray(counts, np.float64)
    together = counts.sum(axis=0)
    return counts / counts.sum(axis=1, keepdims=True), together / together.sum()


def _entropy_to(shares: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the sum of p log2(p / q) over the last axis, where p is not 0."""
    ratio = np.divide(shares, other, out=np.ones_like(other * shares), where=shares > 0)
    return (shares * np.log2(ratio)).sum(axis=-1)
