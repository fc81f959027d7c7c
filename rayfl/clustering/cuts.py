"""The average-linkage tree of a set of points, cut into any number of clusters, and how well each cut fits."""

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from rayfl.clustering.gram import Floats

Labels = NDArray[np.int64]


def average_linkage(distances: Floats) -> Floats:
    """Return scipy's tree of (n, n) distances: row t says which two clusters step t merges."""
    return scipy.cluster.hierarchy.linkage(scipy.spatial.distance.squareform(distances, checks=False), "average")


def cut(tree: Floats, clusters: int) -> Labels:
    """Return the labels after all but the last `clusters` - 1 merges, numbered in order of the first row.

    Unlike scipy's `maxclust`, this gives exactly `clusters` clusters even if merges have equal distances.

    >>> cut(average_linkage(np.abs(np.subtract.outer([0.0, 1, 10, 11], [0.0, 1, 10, 11]))), 2).tolist()
    [0, 0, 1, 1]
    """
    rows = len(tree) + 1
    merges = tree[: rows - clusters, :2].astype(np.int64)
    above = np.arange(2 * rows - 1)
    above[merges] = rows + np.arange(len(merges))[:, None]
    while (higher := above[above]).tolist() != above.tolist():
        above = higher
    return in_order_of_first(above[:rows])


def silhouettes(distances: Floats, tree: Floats, counts: Sequence[int]) -> Floats:
    """Return the mean silhouette of the cut into each number of clusters; `counts` must be in rising order.

    A coarser cut merges clusters of a finer one, so the sums of distances to clusters are computed once, then added.

    >>> line = np.abs(np.subtract.outer([0.0, 1, 10, 11], [0.0, 1, 10, 11]))
    >>> silhouettes(line, average_linkage(line), [2, 3]).round(3).tolist()
    [0.9, 0.447]
    """
    if not len(counts):
        return np.zeros(0)
    labels = cut(tree, counts[-1])
    members = np.zeros((len(labels), counts[-1]))
    members[np.arange(len(labels)), labels] = 1.0
    sums = distances @ members
    found = np.empty(len(counts))
    for i in range(len(counts) - 1, -1, -1):
        found[i] = _silhouette_of_sums(sums, labels)
        if i:
            coarser = cut(tree, counts[i - 1])
            into = coarser[np.unique(labels, return_index=True)[1]]  # the coarser cluster of each finer one
            sums, labels = sums @ np.eye(counts[i - 1])[into], coarser
    return found


def mean_silhouette(distances: Floats, labels: Labels) -> float:
    """Return the mean silhouette of the labels 0, 1, ...: equal to sklearn's up to rounding, and much faster."""
    members = np.zeros((len(labels), int(labels.max()) + 1))
    members[np.arange(len(labels)), labels] = 1.0
    return _silhouette_of_sums(distances @ members, labels)


def _silhouette_of_sums(sums: Floats, labels: Labels) -> float:
    """The silhouette, from the sum of each row's distances to the rows of every cluster."""
    rows, sizes = np.arange(len(labels)), np.bincount(labels)
    alone = sizes[labels] == 1
    own = sums[rows, labels] / np.where(alone, 1, sizes[labels] - 1)
    other = sums / sizes
    other[rows, labels] = np.inf
    nearest = other.min(axis=1)
    widest = np.maximum(own, nearest)
    return float(np.where(alone | (widest == 0), 0.0, (nearest - own) / np.where(widest > 0, widest, 1.0)).mean())


def cloud_like(points: Floats, rng: np.random.Generator) -> Floats:
    """Draw points with exactly the mean and covariance of `points`, but without clusters: rows are mixed at random."""
    mean = points.mean(axis=0)
    _, strengths, axes = np.linalg.svd(points - mean, full_matrices=False)
    rank = min(int((strengths > 1e-9 * strengths[0]).sum()), len(points) - 1)
    frame = rng.standard_normal((len(points), rank))
    frame, _ = np.linalg.qr(frame - frame.mean(axis=0))
    return mean + frame @ (strengths[:rank, None] * axes[:rank])


def in_order_of_first(labels: NDArray) -> Labels:
    """Return the same clusters, numbered 0, 1, ... in order of their first row."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse].astype(np.int64)
