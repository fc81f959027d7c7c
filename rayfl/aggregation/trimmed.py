"""The trimmed mean of models: a few outliers among them cannot move it far (SR-FCA)."""

import numpy as np

from rayfl.aggregation.exact import ExactSum, fraction_bits, mean_of
from rayfl.errors import DivergedError

_BLOCK = 16384  # columns sorted at a time


def trimmed_mean(vectors: np.ndarray, beta: float) -> np.ndarray:
    """Return TrMean_beta of the rows of `vectors` (J, d), coordinate by coordinate (SR-FCA, Definition 3.2).

    The floor(beta J) smallest and the floor(beta J) largest values are dropped, and the rest are averaged over their
    true count, which differs from the paper's (1 - 2 beta) J where beta J is not a whole number. With nothing dropped,
    the result is the exact mean, bit for bit. The order of the rows does not matter.

    >>> trimmed_mean(np.float32([[1, 5], [2, 6], [3, -700], [400, 7]]), beta=0.25).tolist()
    [2.5, 5.5]
    """
    if not 0 <= beta < 0.5:
        raise ValueError(f"beta is {beta}; it must be at least 0 and below 0.5")
    count, size = vectors.shape
    if count == 0:
        raise ValueError("there are no vectors to take the mean of")
    # 0.29 * 100 is 28.999... in floating point: rounding must not turn 29 into 28.
    cut = min(int(beta * count + 1e-9), (count - 1) // 2)
    if cut == 0:
        exact = ExactSum(size, fraction_bits(count))
        for vector in vectors:
            exact.add(vector)
        return mean_of(exact.total, count, exact.bits)
    mean = np.empty(size, np.float32)
    for start in range(0, size, _BLOCK):
        part = slice(start, start + _BLOCK)
        ordered = np.sort(vectors[:, part], axis=0)
        # A NaN sorts last and an infinity first or last, so without this check a diverged client would be trimmed away.
        if not np.isfinite(ordered[[0, -1]]).all():
            raise DivergedError("a model has values that are not finite: training diverged; lower local.lr")
        mean[part] = ordered[cut : count - cut].mean(axis=0, dtype=np.float64)
    return mean
