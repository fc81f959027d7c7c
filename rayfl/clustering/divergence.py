"""Divergences between clients' distributions: of their predictions (FedTSDP) and their labels (FedAC, Figure 2)."""

import numpy as np
from numpy.typing import NDArray

from rayfl.clustering.similarity import Floats, Weights


def jensen_shannon(predictions: Floats | Weights) -> Floats:
    """Return the (m, m) Jensen-Shannon divergences between clients, from their predictions (m, B, C).

    FedTSDP, Eq. 5, as the mean over the B public points; each row of C numbers is a softmax output. This is the
    divergence itself, with the natural logarithm, and not its square root: between 0 and log 2, and symmetric.

    >>> sure, unsure = [[1.0, 0.0]], [[0.5, 0.5]]
    >>> jensen_shannon(np.array([sure, unsure, [[0.0, 1.0]]])).round(3).tolist()
    [[0.0, 0.216, 0.693], [0.216, 0.0, 0.216], [0.693, 0.216, 0.0]]
    """
    from scipy.special import rel_entr

    rows = np.asarray(predictions, np.float64)
    if rows.ndim != 3 or 0 in rows.shape[1:]:
        raise ValueError(f"predictions have shape {rows.shape}; expected (clients, public points, classes)")
    if not (rows.min(initial=0) >= 0 and np.allclose(rows.sum(axis=2), 1.0, atol=1e-3)):
        raise ValueError("predictions are not probabilities that add up to 1 in each row; pass them through a softmax")
    divergences = np.zeros((len(rows), len(rows)))
    # One client against all later ones at a time, so that no array is larger than the predictions.
    for client, own in enumerate(rows[:-1]):
        others = rows[client + 1 :]
        middle = (own + others) / 2
        apart = rel_entr(own, middle).sum(axis=(1, 2)) + rel_entr(others, middle).sum(axis=(1, 2))
        # For nearly equal clients, rounding can give a sum slightly below zero.
        divergences[client, client + 1 :] = np.maximum(apart / (2 * rows.shape[1]), 0.0)
    return divergences + divergences.T


def kl_divergences(label_counts: NDArray[np.int64] | Floats, smoothing: float = 0.5) -> Floats:
    """Return the Kullback-Leibler divergences D(row || column) between clients' labels, given counts (m, C).

    FedAC's Figure 2(b) compares models with it. It is not symmetric. `smoothing` (half a sample) is added to every
    count; otherwise, a client without a label would be infinitely far from all clients that have it.

    >>> kl_divergences(np.array([[9, 0], [0, 9], [90, 0]])).round(2).tolist()
    [[0.0, 2.65, 0.07], [2.65, 0.0, 4.75], [0.03, 2.95, 0.0]]
    """
    if smoothing <= 0:
        raise ValueError(f"smoothing is {smoothing}; it must be above 0, or a missing label is infinitely far")
    raised = np.asarray(label_counts, np.float64) + smoothing
    shares = raised / raised.sum(axis=1, keepdims=True)
    logs = np.log(shares)
    divergences = np.maximum((shares * logs).sum(axis=1, keepdims=True) - shares @ logs.T, 0.0)
    np.fill_diagonal(divergences, 0.0)
    return divergences
