"""A step part of the way from an old model to a new mean (CAM)."""

import numpy as np


def damped_mean(old: np.ndarray, mean: np.ndarray, share: float, parameters: int | None = None) -> np.ndarray:
    """Return (1 - share) * old + share * mean as float32: the cluster's step in CAM, Eq. 6.

    `mean` is the mean over the cluster's clients weighted by n_i, `share` their fraction of all samples in the round.
    A share of 0 (a cluster without clients) returns exactly the old model, and a share of 1 the mean.

    Only the first `parameters` numbers are damped. The rest are running statistics of batch norm, which describe the
    data and not a gradient step: they are replaced by the mean.

    >>> damped_mean(np.float32([1, 2]), np.float32([3, 6]), share=0.25).tolist()
    [1.5, 3.0]
    >>> damped_mean(np.float32([1, 2]), np.float32([3, 6]), share=0.25, parameters=1).tolist()
    [1.5, 6.0]
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; it must be between 0 and 1")
    stepped = ((1.0 - share) * old.astype(np.float64) + share * mean.astype(np.float64)).astype(np.float32)
    if parameters is not None and share > 0:
        stepped[parameters:] = mean[parameters:]
    return stepped
