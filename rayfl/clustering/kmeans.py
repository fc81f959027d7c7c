"""Weighted K-means, as FeSEM (unweighted, thesis Eq. 3.2) and WeCFL (thesis Eq. 3.3 and Algorithm 1) need it.

Lloyd's steps are our own: scikit-learn moves an empty cluster to a far point and wants no more clusters than
points, so numbers would change their meaning from round to round.
"""

from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rayfl.clustering.cluster_number import Labels, match_labels
from rayfl.clustering.gram import Floats, column_blocks, gram_matrix
from rayfl.clustering.similarity import Weights

_ROWS = 512  # with a block of columns, 64 MB as float64
_MOST_ROWS = 1500  # beyond, the eigenvectors of the Gram matrix take longer than they save
_TIE = 1e-9  # relative; by less, two inertias are the same up to rounding


def kmeans(
    points: Floats | Weights,
    clusters: int,
    weights: ArrayLike | None = None,
    start: Floats | Weights | None = None,
    seed: int | np.random.Generator = 0,
    iterations: int = 100,
) -> tuple[Labels, Floats]:
    """Return each row's cluster and the centres, by squared L2 distance, after at most `iterations` steps.

    One step is the E-step and the M-step of WeCFL; `weights` (n,) are its client weights, all 1 for FeSEM. They
    move the centres only: a row's own weight scales its distances from all centres alike.

    With `start`, cluster k is the one that start[k] grew into. A cluster that loses all its rows keeps its centre
    and can win rows back, so there may be more clusters than rows. Centres that `start` lacks are drawn by greedy
    k-means++ with `seed`, as many as there are distinct rows: fewer than `clusters`, if there are not that many.

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
    """Return each row's cluster, below `clusters`, in the best of several runs of K-means.

    The best has the least inertia: the sum of squared distances of the rows from their centres, by weight. With
    `start`, one of the runs begins from these centres, so that cluster k is what start[k] grew into; another run must
    be better than it, and is renumbered so that as many rows as possible keep their number of `previous` (-1: none).
    Without `fill`, such a run gets only as many clusters as the one from `start` fills.

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
        if not np.isfinite(points).all():  # a client's training has diverged: there is nowhere to draw centres from
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
    """Give the clusters of `found` their numbers of `previous`, and those without one the numbers that are left."""
    matched = match_labels(previous, found, fresh=clusters)
    spare = np.setdiff1d(np.arange(clusters), matched)
    return np.where(matched < clusters, matched, spare[np.maximum(matched - clusters, 0)] if len(spare) else 0)


def _coordinates(
    points: Floats | Weights, start: Floats | Weights | None
) -> tuple[Floats | Weights, Floats | Weights | None]:
    """Return points and centres at the same distances from each other, in as few dimensions as there are of them.

    K-means needs nothing but these distances. They come from one Gram matrix around the mean of the points, by its
    eigenvectors; after that no run looks at the millions of columns again. Where that gains nothing, all stays as is.
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
    """Return centres to start from: rows that lie far apart, fewer than `clusters` if not so many differ.

    >>> kmeans_plus_plus(np.array([[1.0], [1.0], [5.0]]), 3).ravel().tolist()
    [1.0, 5.0]
    """
    nothing = np.zeros((0, points.shape[1]))
    return _drawn(points, np.ones(len(points)), nothing, clusters, np.random.default_rng(seed))


def nearest(points: Floats | Weights, centres: Floats | Weights) -> Labels:
    """Return the number of the centre nearest to each row; of equally near ones the lowest.

    >>> nearest(np.array([[1.0], [2.0], [7.0]]), np.array([[0.0], [4.0], [4.0]])).tolist()
    [0, 0, 1]
    """
    return _squared_distances(points, centres).argmin(axis=1).astype(np.int64)


def _squared_distances(points: Floats | Weights, centres: Floats | Weights) -> Floats:
    # By differences: |x|^2 - 2xc + |c|^2 would cancel, as models of one federation lie close together far from zero.
    distances = np.zeros((len(points), len(centres)))
    for part in column_blocks(points.shape[1]):
        for row in range(0, len(points), _ROWS):
            rows = slice(row, row + _ROWS)
            distances[rows] += scipy.spatial.distance.cdist(points[rows, part], centres[:, part], "sqeuclidean")
    return distances


def _means(points: Floats | Weights, masses: Floats, assignment: Labels, centres: Floats) -> Floats:
    """The weighted mean of each cluster's rows; the old centre where they weigh nothing."""
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
    """Greedy k-means++: of a few rows drawn by weight times squared distance, take the one that helps most."""
    more: list[Floats] = []
    # Without a centre all rows are equally far, and the first row is drawn by weight alone.
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
