"""How well found clusters agree with the known ones: pure functions of two arrays, a label per client.

Labels are only names: which number a cluster has does not matter, and there may be more of them on one side.
Clients without a label on either side (-1, None, NaN) are left out; if nobody is left, the answer is NaN.
scikit-learn takes a second to import, and a run should not wait for it before it starts: so it comes where it is used.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy


def adjusted_rand(true: Any, found: Any) -> float:
    """Return the adjusted Rand index: 1 for the same clusters, about 0 for chance, below 0 for worse.

    >>> adjusted_rand([0, 0, 1, 1], [7, 7, 3, 3])
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return _score(adjusted_rand_score, true, found)


def normalised_mutual_information(true: Any, found: Any) -> float:
    """Return the mutual information over the mean entropy: 1 for the same clusters, 0 if one tells nothing.

    >>> normalised_mutual_information([0, 0, 1, 1], [0, 1, 0, 1])
    0.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    return _score(normalized_mutual_info_score, true, found)


def purity(true: Any, found: Any) -> float:
    """Return the share of clients that are of their found cluster's most frequent true cluster.

    Many small clusters are pure: read it beside the number of clusters.

    >>> purity([0, 0, 0, 1], [0, 0, 1, 1])
    0.75
    """
    return _score(lambda t, f: _together(t, f).max(axis=0).sum() / len(t), true, found)


def misclustering(true: Any, found: Any) -> float:
    """Return the share of clients in the wrong cluster, with clusters matched one to one at their best.

    Clusters left without a partner are wrong as a whole.

    >>> misclustering([0, 0, 1, 1], [1, 1, 0, 2])
    0.25
    """

    def error(true: np.ndarray, found: np.ndarray) -> float:
        together = _together(true, found)
        rows, columns = scipy.optimize.linear_sum_assignment(together, maximize=True)
        return 1 - together[rows, columns].sum() / len(true)

    return _score(error, true, found)


def _score(measure: Callable[[np.ndarray, np.ndarray], float], true: Any, found: Any) -> float:
    first, second = _labels(true), _labels(found)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} true labels and {len(second)} found ones: one of each per client is needed")
    known = (first >= 0) & (second >= 0)
    if not known.any():
        return math.nan
    with warnings.catch_warnings():
        # scikit-learn takes many labels for a regression by mistake; here each client may have its own.
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        return float(measure(first[known], second[known]))


def _together(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return how many clients each pair of a true and a found cluster has."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(true, found)


def _labels(labels: Any) -> np.ndarray:
    return pd.array(labels, dtype="Int64").to_numpy(dtype=np.int64, na_value=-1)
