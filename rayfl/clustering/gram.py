"""The Gram matrix of n rows and its principal directions; each row may have millions of numbers.

The rows are processed in blocks of columns, in float64, so that they are never copied as a whole.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Columns per block. With 50 components a block has 3 MB, which stay in the cache while every vector is projected.
BLOCK = 16384


def column_blocks(dim: int) -> Iterator[slice]:
    """Yield the columns as slices, one block at a time.

    >>> [(part.start, part.stop) for part in column_blocks(20_000)]
    [(0, 16384), (16384, 20000)]
    """
    return (slice(start, min(start + BLOCK, dim)) for start in range(0, dim, BLOCK))


def gram_matrix(blocks: Iterable[Floats], rows: int) -> Floats:
    """Return the products of all rows with each other, given as blocks of columns (rows, columns).

    >>> gram_matrix([np.array([[1.0], [2.0]]), np.array([[3.0], [0.0]])], rows=2).tolist()
    [[10.0, 2.0], [2.0, 4.0]]
    """
    gram = np.zeros((rows, rows))
    for block in blocks:
        gram += block @ block.T
    return gram


def principal_directions(gram: Floats, floor: float, most: int) -> tuple[Floats, Floats]:
    """Return strengths above `floor` and loadings (rows, D) of the strongest directions, at most `most` of them.

    The sign of each direction is fixed (its largest loading is positive), so that equal input gives equal bits.

    >>> strengths, loadings = principal_directions(np.array([[1.0, -2.0], [-2.0, 4.0]]), floor=1e-9, most=2)
    >>> strengths.round(6).tolist(), (loadings * 5**0.5).round(6).tolist()
    ([5.0], [[-1.0], [2.0]])
    """
    strengths, loadings = np.linalg.eigh(gram)
    # Strengths that float32 cannot distinguish from zero come from rounding.
    keep = np.flatnonzero(strengths > max(floor, 1e-10 * strengths.max(initial=0.0)))[::-1][:most]
    turn = loadings[:, keep]
    return strengths[keep], turn * np.sign(turn[np.abs(turn).argmax(axis=0), np.arange(len(keep))])
