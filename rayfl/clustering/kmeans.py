"""Weighted K-means, as FeSEM (unweighted, thesis Eq. 3.2) and WeCFL (thesis Eq. 3.3 and Algorithm 1) need it.

Lloyd's steps are implemented here and not taken from scikit-learn, which moves an empty cluster to a far point and does
not allow more clusters than points: cluster numbers would change their meaning from round to round.
"""

from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rayfl.clustering.cluster_number import match_labels
from rayfl.clustering.cuts import Labels
from rayfl.clustering.gram import Floats, column_blocks, gram_matrix
from rayfl.clustering.similarity import Weights

_ROWS = 512  # with a block of columns, 64 MB as float64
_MOST_ROWS = 1500  # with more rows, computing the Gram matrix's eigenvectors takes more time than it saves
_TIE = 1e-9  # relative; two inertias that differ by less are treated as equal, because of rounding


def kmeans(
    points: Floats | Weights,
    clusters: int,
    weights: ArrayLike | None = None,
    start: Floats | Weights | None = None,
    seed: int | np.random.Generator = 0,
    iterations: int = 100,
) -> tuple[Labels, Floats]:
    """Return each row's cluster and the centres, by squared L2 distance, after at most `iterations` steps.

    One step is the E-step and the M-step of WeCFL; `weights` (n,) are its client weights, all 1 for FeSEM. Weights
    affect only the centres: a row's weight scales its distances from all centres by the same factor.

    With `start`, cluster k is the one that started at start[k]. A cluster that loses all its rows keeps its centre
    and can get rows again later, so there may be more clusters than rows. Centres that are missing in `start` are drawn
    by greedy k-means++ with `seed`; if there are too few distinct rows, fewer than `clusters` are drawn.

    >>> line = np.array([[0.0], [2.0], [9.0]])
    >>> assignment, centres = kmeans(line, 3, start=np.array([[8.0], [0.0], [50.0]]))
    >>> assignment.tolist(), centres.ravel().tolist()
    ([1, 1, 0], [9.0, 1.0, 50.0])
    >>> kmeans(line, 2, weights=[3, 1, 1], start=line[[0, 2]])[1].ravel().tolist()
    [0.5, 9.0]
    """
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, np.float64)
    centres = np.zeros((0, points.shape[1])) if start is None else np.array(start, np.float64)
    if clusters < 1 or iterations < 1:
        raise ValueError(f"clusters is {clusters} and iterations {iterations}; both must be at least 1")
    if masses.shape != (len(points),) or not np.isfinite(masses).all() or (masses < 0).any():
        raise ValueError(f"weights must be {len(points)} finite numbers, none negative: one for each row of points")
    if centres.ndim != 2 or centres.shape[1] != points.shape[1] or len(centres) > clusters:
        raise ValueError(
            f"start has shape {centres.shape}; expected up to {clusters} rows of {points.shape[1]} numbers"
        )
    centres = np.vstack([centres, _drawn(points, masses, centres, clusters, np.random.default_rng(seed))])
    if len(centres) == 0:
        raise ValueError("there is no row with a weight above 0 to start a cluster from")

    assignment = nearest(points, centres)
    centres = _means(points, masses, assignment, centres)
    for _ in range(iterations - 1):
        before, assignment = assignment, nearest(points, centres)
        if np.array_equal(before, assignment):
            break
        centres = _means(points, masses, assignment, centres)
    return assignment, centres


def best_kmeans(
    points: Floats | Weights,
    clusters: int,
    weights: ArrayLike | None = None,
    start: Floats | Weights | None = None,
    previous: Labels | None = None,
    starts: int = 10,
    fill: bool = True,
    seed: int | np.random.Generator = 0,
) -> Labels:
    """Return each row's cluster (0 to `clusters` - 1) in the best of several runs of K-means.

    The best run has the smallest inertia: the weighted sum of squared distances of the rows from their centres. With
    `start`, the first run begins from these centres, so that cluster k is the one that started at start[k]. Another run
    is chosen only if it is better; it is renumbered so that as many rows as possible keep their cluster number of
    `previous` (-1: none). Without `fill`, the other runs get only as many clusters as the first run has non-empty ones.

    >>> line = np.array([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])
    >>> poor = np.array([[0.0], [1.0], [15.0]])
    >>> kmeans(line, 3, start=poor)[0].tolist()
    [0, 1, 2, 2, 2, 2]
    >>> best_kmeans(line, 3, start=poor, previous=np.array([0, 1, 2, 2, 2, 2])).tolist()
    [0, 0, 2, 2, 1, 1]
    """
    if starts < 1:
        raise ValueError(f"starts is {starts}; it must be at least 1")
    points, start = _coordinates(points, start)
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, np.float64)
    rng = np.random.default_rng(seed)
    best, least, most = None, np.inf, clusters
    if start is not None:
        best, centres = kmeans(points, clusters, masses, start, rng)
        least = _inertia(points, masses, best, centres)
        most = clusters if fill else len(np.unique(best))
        if not np.isfinite(points).all():  # a client's training has diverged, so no centres can be drawn
            return best
    fresh = False
    for _ in range(starts - (start is not None)):
        found, centres = kmeans(points, most, masses, seed=rng)
        inertia = _inertia(points, masses, found, centres)
        if best is None or inertia < least * (1 - _TIE):
            best, least, fresh = found, inertia, True
    assert best is not None  # there is at least one run
    return _renumbered(best, previous, clusters) if fresh and previous is not None else best


def _renumbered(found: Labels, previous: Labels, clusters: int) -> Labels:
    """Give the clusters of `found` their numbers of `previous`; those that had none get the unused numbers."""
    matched = match_labels(previous, found, fresh=clusters)
    spare = np.setdiff1d(np.arange(clusters), matched)
    return np.where(matched < clusters, matched, spare[np.maximum(matched - clusters, 0)] if len(spare) else 0)


def _coordinates(
    points: Floats | Weights, start: Floats | Weights | None
) -> tuple[Floats | Weights, Floats | Weights | None]:
    """Return points and centres with the same distances between them, but only as many dimensions as there are rows.

    K-means needs only these distances. The new coordinates come from the eigenvectors of one Gram matrix around the
    mean of the points; after that, no run has to read the millions of columns again. Where that saves nothing, points
    and centres are returned unchanged.
    """
    rows, dim = len(points) + (0 if start is None else len(start)), points.shape[1]
    if rows >= dim or rows > _MOST_ROWS:
        return points, start

    def centred() -> Iterator[Floats]:
        for part in column_blocks(dim):
            block = points[:, part].astype(np.float64)
            mean = block.mean(axis=0)
            if start is not None:
                block = np.vstack([block, start[:, part]])
            block -= mean
            yield block

    gram = gram_matrix(centred(), rows)
    if not np.isfinite(gram).all():
        return points, start
    strengths, turn = np.linalg.eigh(gram)
    found = turn * np.sqrt(np.maximum(strengths, 0.0))
    return found[: len(points)], None if start is None else found[len(points) :]


def _inertia(points: Floats | Weights, masses: Floats, assignment: Labels, centres: Floats) -> float:
    return float(masses @ _squared_distances(points, centres)[np.arange(len(points)), assignment])


def kmeans_plus_plus(points: Floats | Weights, clusters: int, seed: int | np.random.Generator = 0) -> Floats:
    """Return centres to start from: rows that are far apart; fewer than `clusters` if there are too few distinct rows.

    >>> kmeans_plus_plus(np.array([[1.0], [1.0], [5.0]]), 3).ravel().tolist()
    [1.0, 5.0]
    """
    nothing = np.zeros((0, points.shape[1]))
    return _drawn(points, np.ones(len(points)), nothing, clusters, np.random.default_rng(seed))


def nearest(points: Floats | Weights, centres: Floats | Weights) -> Labels:
    """Return the number of the centre nearest to each row; at a tie, the lowest number.

    >>> nearest(np.array([[1.0], [2.0], [7.0]]), np.array([[0.0], [4.0], [4.0]])).tolist()
    [0, 0, 1]
    """
    return _squared_distances(points, centres).argmin(axis=1).astype(np.int64)


def _squared_distances(points: Floats | Weights, centres: Floats | Weights) -> Floats:
    # Compute differences: |x|^2 - 2xc + |c|^2 would lose digits, because models of one federation are close to each
    # other and far from zero.
    distances = np.zeros((len(points), len(centres)))
    for part in column_blocks(points.shape[1]):
        for row in range(0, len(points), _ROWS):
            rows = slice(row, row + _ROWS)
            distances[rows] += scipy.spatial.distance.cdist(points[rows, part], centres[:, part], "sqeuclidean")
    return distances


def _means(points: Floats | Weights, masses: Floats, assignment: Labels, centres: Floats) -> Floats:
    """The weighted mean of each cluster's rows; the old centre if their total weight is 0."""
    totals = np.bincount(assignment, masses, minlength=len(centres))
    alive = np.flatnonzero(totals)
    shares = np.where(assignment == alive[:, None], masses, 0.0) / totals[alive, None]
    means = centres.copy()
    for part in column_blocks(points.shape[1]):
        means[alive, part] = sum(
            shares[:, row : row + _ROWS] @ points[row : row + _ROWS, part].astype(np.float64)
            for row in range(0, len(points), _ROWS)
        )
    return means


def _drawn(
    points: Floats | Weights, masses: Floats, centres: Floats, clusters: int, rng: np.random.Generator
) -> Floats:
    """Greedy k-means++: of a few rows drawn by weight times squared distance, take the one that lowers inertia most."""
    more: list[Floats] = []
    # Without any centre, all rows count as equally far, so the first row is drawn by weight only.
    closest = _squared_distances(points, centres).min(axis=1) if len(centres) else np.ones(len(points))
    tries = 2 + int(np.log(clusters))
    while len(centres) + len(more) < clusters and (odds := masses * closest).any():
        first = not len(centres) and not more
        drawn = rng.choice(len(points), 1 if first else tries, p=odds / odds.sum())
        distances = _squared_distances(points, points[drawn])
        if not first:
            distances = np.minimum(distances, closest[:, None])
        best = int((masses @ distances).argmin())
        more.append(points[drawn[best]].astype(np.float64))
        closest = distances[:, best]
    return np.array(more, np.float64).reshape(len(more), points.shape[1])
