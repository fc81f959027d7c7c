"""Clustering without a given number of clusters: by density, graph, tree or halving; and FedGroup's features.

All functions except `edc` take (n, n) distances or similarities from any source: `similarity`, `divergence` or
losses. Clusters are numbered 0, 1, ... in order of their first row.
"""

import numpy as np
import scipy
from numpy.typing import NDArray

from rayfl.clustering.cuts import Labels, in_order_of_first
from rayfl.clustering.gram import Floats, column_blocks, gram_matrix, principal_directions
from rayfl.clustering.similarity import Weights

_LINKAGES = ("average", "complete", "single")  # the ones that make sense for any distance


def dbscan(distances: Floats, eps: float, min_points: int) -> Labels:
    """Return the clusters of DBSCAN; each noise point is its own cluster (FedTSDP, sections 3.2.1 and 3.3.1).

    A row with at least `min_points` rows within `eps`, itself included, is a core row. A border row between two
    clusters goes to the one with the lower number; with `min_points` 2 there are no border rows.

    >>> line = np.array([[9.0], [1.0], [2.0], [4.0]])
    >>> dbscan(np.abs(line - line.T), eps=1.5, min_points=2).tolist()
    [0, 1, 1, 2]
    """
    from sklearn.cluster import DBSCAN

    if len(distances) == 0:
        return np.zeros(0, np.int64)
    labels = DBSCAN(eps=eps, min_samples=min_points, metric="precomputed").fit_predict(distances).astype(np.int64)
    noise = labels < 0
    labels[noise] = labels.max() + 1 + np.arange(noise.sum())
    return in_order_of_first(labels)


def components(distances: Floats, threshold: float, smallest: int = 1) -> Labels:
    """Return the connected components of the graph with an edge wherever the distance is at most `threshold`.

    ONE_SHOT of SR-FCA (Algorithm 1): components with fewer than `smallest` rows are not clusters; each of their rows
    joins the cluster with the smallest average distance. If no component is large enough, all components stay:
    SR-FCA can merge clusters later but never split them, so putting all rows into one cluster could not be undone.

    >>> line = np.array([[0.0], [1.0], [4.0], [8.0], [9.0], [10.0]])
    >>> components(np.abs(line - line.T), threshold=1, smallest=2).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    found = _connected(distances <= threshold)
    sizes = np.bincount(found)
    large = np.flatnonzero(sizes >= smallest)
    stray = np.flatnonzero(sizes[found] < smallest)
    if len(large) and len(stray):
        apart = np.stack([distances[stray][:, found == k].mean(axis=1) for k in large], axis=1)
        found[stray] = large[apart.argmin(axis=1)]
    return in_order_of_first(found)


def merge_clusters(cluster_distances: Floats, threshold: float) -> Labels:
    """Merge clusters at most `threshold` apart; return the new number of each of K clusters (MERGE, Algorithm 4).

    Chains are merged too: a and c become one if b is near both. A cluster that is near no other stays, whatever its
    size.

    >>> merge_clusters(np.array([[0.0, 9, 1], [9, 0, 9], [1, 9, 0]]), threshold=2).tolist()
    [0, 1, 0]
    """
    return in_order_of_first(_connected(cluster_distances <= threshold))


def agglomerative(
    distances: Floats, threshold: float | None = None, clusters: int | None = None, linkage: str = "average"
) -> Labels:
    """Merge the two nearest clusters repeatedly, up to the distance `threshold` or until `clusters` are left (FL+HC).

    Give either `threshold` or `clusters`. Merges at exactly `threshold` are made. If `clusters` is more than the
    number of rows, each row is its own cluster.

    >>> line = np.array([[0.0], [1.0], [3.0], [9.0]])
    >>> agglomerative(np.abs(line - line.T), threshold=2.0).tolist()
    [0, 0, 1, 2]
    >>> agglomerative(np.abs(line - line.T), clusters=2).tolist()
    [0, 0, 0, 1]
    """
    if (threshold is None) == (clusters is None):
        raise ValueError("agglomerative needs either threshold or clusters, and not both")
    if linkage not in _LINKAGES:
        raise ValueError(f"linkage is {linkage!r}; expected one of {', '.join(_LINKAGES)}")
    if clusters is not None and clusters < 1:
        raise ValueError(f"clusters is {clusters}; it must be at least 1")
    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    tree = scipy.cluster.hierarchy.linkage(scipy.spatial.distance.squareform(distances, checks=False), linkage)
    if clusters is None:
        return in_order_of_first(scipy.cluster.hierarchy.fcluster(tree, threshold, "distance"))
    # fcluster would give fewer clusters when merges tie.
    return in_order_of_first(scipy.cluster.hierarchy.cut_tree(tree, min(clusters, len(distances))).ravel())


def bipartition(similarity: Floats) -> Labels:
    """Split the rows in two so that the largest similarity across the split is minimal; the first row's part is 0.

    This is the split of CFL (Sattler et al.). Every cut crosses the maximum spanning tree, so none is better than the
    tree's weakest edge, and cutting that edge achieves it: the result is single linkage cut in two, not complete
    linkage.

    >>> bipartition(np.array([[1.0, -0.5, 0.6], [-0.5, 1.0, 0.1], [0.6, 0.1, 1.0]])).tolist()
    [0, 1, 0]
    """
    return agglomerative(1.0 - similarity, clusters=2, linkage="single")


def edc(updates: Floats | Weights, directions: int) -> Floats:
    """Return the cosine of each update with the leading singular directions of all of them: FedGroup's features.

    K-means on these rows then replaces clustering by the n x n cosines (EDC, Duan et al.). With the updates
    A = U S V', the cosines are U S divided by the rows' lengths, so only the n x n Gram matrix is needed. Directions
    with strength 0 are left out, so there are at most as many columns as the rank; for a zero update all cosines are 0.
    The largest entry of each of U's columns is positive.

    >>> edc(np.array([[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0]]), directions=2).round(6).tolist()
    [[1.0], [1.0], [-1.0]]
    """
    if directions < 1:
        raise ValueError(f"directions is {directions}; it must be at least 1")
    parts = column_blocks(updates.shape[1])
    gram = gram_matrix((updates[:, part].astype(np.float64) for part in parts), len(updates))
    strengths, turn = principal_directions(gram, 0.0, directions)
    lengths = np.sqrt(np.diag(gram))[:, None]
    return np.clip(turn * np.sqrt(strengths) / np.where(lengths > 0, lengths, 1.0), -1.0, 1.0)


def _connected(edges: NDArray[np.bool_]) -> Labels:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    return connected_components(csr_array(edges), directed=False)[1].astype(np.int64)
