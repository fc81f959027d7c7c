"""How similar clients are: low-rank sketches of their models, and cosine or L2 distances between sketches.

FedAC, section 4.3 and Algorithm 2. Arrays in, arrays out; the caller decides what to project and when.
Every sum runs over fixed blocks of columns, so no result depends on how clients are distributed over actors.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from rayfl.clustering.gram import BLOCK, Floats, column_blocks, gram_matrix, principal_directions

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class LowRankMap:
    """The matrix M of Algorithm 2: principal components of a cohort's weights, and their mean."""

    mean: Weights  # (dim,)
    components: Weights  # (D, dim), orthonormal rows, the strongest first

    def digest(self) -> str:
        """Return a digest that identifies this map, also after it has been saved and read back."""
        return hashlib.blake2b(np.ascontiguousarray(self.components).data, digest_size=16).hexdigest()


def fit_low_rank(vectors: Weights, components: int) -> LowRankMap:
    """Fit the principal components of the rows of `vectors` with their n x n Gram matrix; dim may be millions.

    There are at most n - 1 components; directions in which the rows do not differ are left out. The sign of
    each component is fixed (its largest loading among the rows is positive), so that equal input gives equal bits.

    >>> fitted = fit_low_rank(np.array([[0, 0, 1], [3, 4, 1], [9, 12, 1]], np.float32), components=2)
    >>> fitted.components.round(2).tolist() == np.float32([[0.6, 0.8, 0.0]]).tolist()
    True
    """
    rows, dim = vectors.shape
    if components < 1:
        raise ValueError(f"components is {components}; a sketch needs at least 1")
    mean = np.empty(dim, np.float32)
    energy = 0.0

    def centred() -> Iterator[Floats]:
        nonlocal energy
        for part in column_blocks(dim):
            block = vectors[:, part].astype(np.float64)
            energy += float(np.vdot(block, block))
            mean[part] = block.mean(axis=0)
            block -= mean[part]
            yield block

    gram = gram_matrix(centred(), rows)
    floor = float(np.finfo(np.float32).eps ** 2 * energy)
    strengths, turn = principal_directions(gram, floor, min(components, rows - 1))
    # Only the Gram matrix needs float64, because its small eigenvalues are differences of large sums.
    turn = (turn / np.sqrt(strengths)).T.astype(np.float32)
    matrix = np.empty((len(strengths), dim), np.float32)
    for part in column_blocks(dim):
        matrix[:, part] = turn @ (vectors[:, part] - mean[part])
    return LowRankMap(mean, matrix)


def project(fitted: LowRankMap, vector: Weights, origin: Weights) -> Floats:
    """Return the D numbers M (w - origin) that a client sends for clustering.

    Algorithm 2 projects the weights themselves: there, `origin` is zero.

    >>> fitted = LowRankMap(mean=np.float32([1, 1]), components=np.float32([[0, 1]]))
    >>> project(fitted, np.float32([5, 3]), origin=fitted.mean).tolist()
    [2.0]
    """
    return project_all(fitted, [vector], origin)[0]


def project_all(fitted: LowRankMap, vectors: Sequence[Weights], origin: Weights) -> Floats:
    """Return the sketches of many vectors, each with exactly the bits that `project` gives for it alone.

    A block of the matrix is read once for all vectors, but each vector is multiplied with it separately: a product
    with several vectors at once might round differently. Sums over a block are float32, sums over blocks float64.
    """
    sketches = np.zeros((len(vectors), len(fitted.components)))
    # Use buffers of fixed alignment, because a BLAS may compute differently for another alignment.
    matrix = _aligned(len(fitted.components), BLOCK)
    difference = _aligned(1, BLOCK)[0]
    for part in column_blocks(len(origin)):
        width = part.stop - part.start
        matrix[:, :width] = fitted.components[:, part]
        for sketch, vector in zip(sketches, vectors, strict=True):
            np.subtract(vector[part], origin[part], out=difference[:width])
            sketch += matrix[:, :width] @ difference[:width]
    return sketches


def cosine(a: Floats, b: Floats) -> Floats:
    """Return the cosine of every row of `a` with every row of `b`; it is 0 for a zero vector.

    >>> cosine(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])).tolist()
    [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]
    """
    return np.clip(unit(a) @ unit(b).T, -1.0, 1.0)


def cosine_distances(sketches: Floats) -> Floats:
    """Return 1 - cosine between all rows: symmetric, zero on the diagonal, between 0 and 2."""
    distances = 1.0 - cosine(sketches, sketches)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0.0)
    return distances


def l2_distances(sketches: Floats, squared: bool = False) -> Floats:
    """Return the Euclidean distances between all rows, or their squares.

    >>> l2_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), squared=True).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    distance = scipy.spatial.distance
    return distance.squareform(distance.pdist(sketches, "sqeuclidean" if squared else "euclidean"))


def squared_distances(vectors: Weights, others: Weights | None = None) -> Floats:
    """Return the squared L2 distances between all rows of (n, dim) weights, or from each to every row of `others`.

    Computed from differences in float64, because models of one federation are close to each other and far from zero.
    dim may be millions. No distance depends on the other rows.

    >>> squared_distances(np.float32([[1000, 0, 0], [1000, 3, 4]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    >>> squared_distances(np.float32([[1000, 0, 0], [1000, 3, 4]]), np.float32([[1000, 3, 0]])).tolist()
    [[9.0], [16.0]]
    """
    distances = np.zeros((len(vectors), len(vectors if others is None else others)))
    for part in column_blocks(vectors.shape[1]):
        block = vectors[:, part].astype(np.float64)
        if others is None:
            distances += l2_distances(block, squared=True)
        else:
            distances += scipy.spatial.distance.cdist(block, others[:, part].astype(np.float64), "sqeuclidean")
    return distances


def update_cosine_distances(vectors: Weights, origin: Weights) -> Floats:
    """Return 1 - cosine between all rows of (n, dim) weights relative to `origin` (dim,), without copying them.

    Computed from the Gram matrix, in float64, over blocks of columns. A row at the origin has distance 1 from all.

    >>> update_cosine_distances(np.float32([[5, 1], [9, 1], [5, 9]]), np.float32([4, 1])).round(6).tolist()[0]
    [0.0, 0.0, 0.875965]
    """
    parts = column_blocks(vectors.shape[1])
    gram = gram_matrix((vectors[:, part].astype(np.float64) - origin[part] for part in parts), len(vectors))
    lengths = np.sqrt(np.diag(gram))
    products = lengths[:, None] * lengths
    distances = 1.0 - np.clip(np.divide(gram, products, out=np.zeros_like(gram), where=products > 0), -1.0, 1.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def cosine_by_distances(between: Floats, from_a: Floats, from_b: Floats) -> Floats:
    """Return the cosine between every a and b relative to an origin, from squared distances: the law of cosines.

    `between` (n, k) are the squared distances of a from b, `from_a` (n,) and `from_b` (k,) those from the origin.

    >>> cosine_by_distances(np.array([[2.0, 4.0]]), np.array([1.0]), np.array([1.0, 1.0])).tolist()
    [[0.0, -1.0]]
    """
    lengths = np.sqrt(from_a)[:, None] * np.sqrt(from_b)[None]
    products = (from_a[:, None] + from_b[None] - between) / 2
    return np.clip(np.divide(products, lengths, out=np.zeros_like(between), where=lengths > 0), -1.0, 1.0)


def unit(vectors: Floats) -> Floats:
    """Return the rows scaled to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _aligned(rows: int, columns: int) -> Weights:
    raw = np.empty(rows * columns + 16, np.float32)
    start = -raw.ctypes.data % 64 // raw.itemsize
    return raw[start : start + rows * columns].reshape(rows, columns)
