"""How well found clusters agree with the known ones: pure functions of two arrays, a label per client.

Labels are only names: the number of a cluster does not matter, and there may be more clusters on one side. Clients
without a label on either side (-1, None, NaN) are left out; if no client is left, the result is NaN. Everything is
computed from one table: how many clients each pair of a true and a found cluster has. scikit-learn has the same
measures, but takes a second to import, and the first round of a run should not wait for that.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy


def adjusted_rand(true: Any, found: Any) -> float:
    """Return the adjusted Rand index: 1 for the same clusters, about 0 for chance, below 0 for worse.

    >>> adjusted_rand([0, 0, 1, 1], [7, 7, 3, 3])
    1.0
    """
    return _score(_adjusted_rand, true, found)


def normalised_mutual_information(true: Any, found: Any) -> float:
    """Return the mutual information divided by the mean entropy: 1 for the same clusters, 0 for independent ones.

    >>> normalised_mutual_information([0, 0, 1, 1], [0, 1, 0, 1])
    0.0
    """
    return _score(_normalised_mutual_information, true, found)


def purity(true: Any, found: Any) -> float:
    """Return the fraction of clients that belong to the most frequent true cluster of their found cluster.

    Many small clusters always have a high purity: read it together with the number of clusters.

    >>> purity([0, 0, 0, 1], [0, 0, 1, 1])
    0.75
    """
    return _score(lambda together: together.max(axis=0).sum() / together.sum(), true, found)


def misclustering(true: Any, found: Any) -> float:
    """Return the fraction of clients in the wrong cluster, after the best one-to-one matching of clusters.

    All clients of clusters without a partner count as wrong.

    >>> misclustering([0, 0, 1, 1], [1, 1, 0, 2])
    0.25
    """

    def error(together: np.ndarray) -> float:
        rows, columns = scipy.optimize.linear_sum_assignment(together, maximize=True)
        return 1 - together[rows, columns].sum() / together.sum()

    return _score(error, true, found)


def matched(together: np.ndarray) -> np.ndarray:
    """Return the columns of a table of true clusters (rows) against found ones, in the order of their best partners.

    Clusters are matched one to one; columns without a partner come last.

    >>> matched(np.array([[0, 5, 1], [4, 0, 0]])).tolist()
    [1, 0, 2]
    """
    if not together.size:
        return np.arange(together.shape[1])
    _, columns = scipy.optimize.linear_sum_assignment(together, maximize=True)
    return np.append(columns, np.setdiff1d(np.arange(together.shape[1]), columns))


def _score(measure: Callable[[np.ndarray], float], true: Any, found: Any) -> float:
    """Apply a measure to the table that counts clients by true cluster (row) and found cluster (column)."""
    first, second = _labels(true), _labels(found)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} true labels and {len(second)} found ones: one of each per client is needed")
    known = (first >= 0) & (second >= 0)
    if not known.any():
        return math.nan
    names, rows = np.unique(first[known], return_inverse=True)
    others, columns = np.unique(second[known], return_inverse=True)
    counts = np.bincount(rows * len(others) + columns, minlength=len(names) * len(others))
    return float(measure(counts.reshape(len(names), len(others))))


def _adjusted_rand(together: np.ndarray) -> float:
    """Return how many pairs of clients are together on both sides, between chance (0) and the most possible (1)."""

    def pairs(sizes: np.ndarray) -> int:
        return int((sizes * (sizes - 1) // 2).sum())

    both, true, found = pairs(together), pairs(together.sum(axis=1)), pairs(together.sum(axis=0))
    if both == true == found:
        return 1.0
    chance = true * found / pairs(together.sum(keepdims=True))
    return (both - chance) / ((true + found) / 2 - chance)


def _normalised_mutual_information(together: np.ndarray) -> float:
    def entropy(shares: np.ndarray) -> float:
        positive = shares[shares > 0]
        return float(-(positive * np.log(positive)).sum())

    shares = together / together.sum()
    true, found = entropy(shares.sum(axis=1)), entropy(shares.sum(axis=0))
    if true == found == 0:
        return 1.0  # one cluster on each side: the same
    shared = true + found - entropy(shares)
    return max(0.0, shared / ((true + found) / 2))


def _labels(labels: Any) -> np.ndarray:
    if isinstance(labels, np.ndarray) and np.issubdtype(labels.dtype, np.integer):
        return labels
    import pandas as pd  # pandas accepts None, NaN and NA for no label

    return pd.array(labels, dtype="Int64").to_numpy(dtype=np.int64, na_value=-1)
