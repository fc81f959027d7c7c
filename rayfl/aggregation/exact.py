"""Sums of float32 vectors that do not depend on the order of their terms.

Each term is rounded to whole multiples of a power of two and added as 64-bit integers. That addition is exact, so the
sum over clients is the same for any split over actors and any order of arrival, and a term can be subtracted again
exactly. It takes one multiplication by a power of two and one conversion per term: as cheap as a float64 sum.
"""

import numpy as np

from rayfl.errors import DivergedError

_FINEST = 36
_HEADROOM = 15  # values below 2**15 never overflow the sum, whatever the weights add up to


def fraction_bits(total_weight: int) -> int:
    """Return how many bits after the binary point a sum can have whose integer weights add up to `total_weight`.

    >>> fraction_bits(100), fraction_bits(60_000)
    (36, 31)
    """
    return min(_FINEST, 62 - _HEADROOM - int(total_weight).bit_length())


class ExactSum:
    """A running sum of weighted vectors: exact, and so independent of their order.

    >>> a = ExactSum(2, bits=fraction_bits(2))
    >>> a.add(np.float32([1, 2])); a.add(np.float32([0.1, 0.2])); a.subtract(np.float32([0.1, 0.2]))
    >>> a.total.tolist() == [2**36, 2**37]
    True
    """

    def __init__(self, size: int, bits: int) -> None:
        self.bits = bits
        self.total = np.zeros(size, np.int64)

    def add(self, vector: np.ndarray, weight: int = 1) -> None:
        """Add `weight` times the vector."""
        self.total += self._fixed(vector, weight)

    def subtract(self, vector: np.ndarray, weight: int = 1) -> None:
        """Undo an `add` of the same vector and weight, exactly."""
        self.total -= self._fixed(vector, weight)

    def _fixed(self, vector: np.ndarray, weight: int) -> np.ndarray:
        limit = 2.0**_HEADROOM
        # A NaN fails the comparison too, so this one check covers everything that cannot be summed.
        if vector.size and not (vector.max() < limit and vector.min() > -limit):
            raise DivergedError(
                f"a model has values that are not finite or beyond {limit:.0f}: training diverged; lower local.lr"
            )
        fixed = (vector * np.float32(2.0**self.bits)).astype(np.int64)
        return fixed if weight == 1 else fixed * np.int64(weight)


def mean_of(total: np.ndarray, weight: int, bits: int) -> np.ndarray:
    """Return the float32 mean from an exact sum, or from several exact sums added up.

    >>> mean_of(np.array([3 << 36]), 2, 36).tolist()
    [1.5]
    """
    return (total / (float(weight) * 2.0**bits)).astype(np.float32)
