"""Count sketches: a few numbers that summarise a long vector, good enough to compare vectors roughly.

Each coordinate is added to one of D numbers, with a random sign (Charikar, Chen and Farach-Colton 2002). The map is
linear, the same for all vectors of one length, and preserves squared lengths and inner products on average, with a
relative error of about sqrt(2 / D). Unlike a dense random projection it needs no D x P matrix.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayfl.clustering.similarity import Floats, Weights
from rayfl.randomness import Purpose, generator


def count_sketch(vector: Weights | Floats, size: int) -> Floats:
    """Return `size` numbers that summarise a vector. Sums are in float64 and in a fixed order: same bits everywhere.

    >>> a, b = np.float32([1, 2, 3]), np.float32([0, 5, -1])
    >>> bool(np.allclose(count_sketch(a, 2) + count_sketch(b, 2), count_sketch(a + b, 2)))
    True
    """
    if size < 1:
        raise ValueError(f"size is {size}; a sketch needs at least 1 number")
    buckets, signs = _hashes(len(vector), size)
    return np.bincount(buckets, weights=vector * signs, minlength=size).astype(np.float64, copy=False)


@lru_cache(maxsize=2)
def _hashes(length: int, size: int) -> tuple[NDArray[np.intp], NDArray[np.int8]]:
    """Return the number that each coordinate is added to, and its sign: the same in all runs, to compare sketches."""
    rng = generator(0, Purpose.SKETCH, size)
    return rng.integers(size, size=length, dtype=np.intp), (2 * rng.integers(2, size=length) - 1).astype(np.int8)
