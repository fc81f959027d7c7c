"""SR-FCA's RECLUSTER and MERGE, as functions on arrays of losses and distances.

Losses are (clients, models): entry (i, j) is f_i(w_j), the mean loss per sample of model j on the data of client i.
f_c, the loss of a cluster, is the unweighted mean over its clients (SR-FCA, Eq. 2), whatever their numbers of samples.
"""

import numpy as np

from rayfl.clustering.cluster_number import NO_CLUSTER
from rayfl.clustering.cuts import Labels, in_order_of_first
from rayfl.clustering.grouping import merge_clusters
from rayfl.clustering.similarity import Floats


def cluster_losses(losses: Floats, labels: Labels, clusters: int) -> Floats:
    """Return f_c of every model (clusters, models); a cluster without clients has NaN.

    >>> cluster_losses(np.array([[1.0, 4.0], [3.0, 0.0], [5.0, 5.0]]), np.array([0, 0, 1]), 2).tolist()
    [[2.0, 2.0], [5.0, 5.0]]
    """
    found = np.full((clusters, losses.shape[1]), np.nan)
    for cluster in np.unique(labels):
        found[cluster] = losses[labels == cluster].mean(axis=0)
    return found


def losses_to_clusters(of_centres: Floats, of_clients: Floats, labels: Labels) -> Floats:
    """Return the distance of each client from each cluster (n, K): half of f_i(w_c) + f_c(w_i) (Definition 5.1).

    `of_centres` (n, K) are the losses of the clusters' models, `of_clients` (n, n) those of the clients' own ones.
    RECLUSTER uses the clusters in which the models were trained, so `labels` is the assignment before RECLUSTER.
    """
    return (of_centres + cluster_losses(of_clients, labels, of_centres.shape[1]).T) / 2


def losses_between_clusters(of_centres: Floats, labels: Labels) -> Floats:
    """Return the distances between all clusters (K, K): half of f_c(w_c') + f_c'(w_c) (Definition 5.1).

    MERGE uses the clusters after RECLUSTER (Algorithm 4 takes C'_r), so `labels` is the assignment after RECLUSTER.
    Clusters that lost all their clients have NaN.
    """
    cross = cluster_losses(of_centres, labels, of_centres.shape[1])
    between = (cross + cross.T) / 2
    np.fill_diagonal(between, 0.0)
    return between


def recluster(to_clusters: Floats) -> Labels:
    """Return each client's nearest cluster; at a tie, the lowest number (RECLUSTER, Algorithm 2).

    >>> recluster(np.array([[0.3, 0.2], [0.1, 0.4], [0.5, 0.5]])).tolist()
    [1, 0, 0]
    """
    return to_clusters.argmin(axis=1).astype(np.int64)


def merge_near_clusters(
    labels: Labels, to_clusters: Floats, between: Floats, threshold: float, smallest: int = 1
) -> tuple[Labels, Labels]:
    """Merge clusters at most `threshold` apart, chains included (MERGE, Algorithm 4).

    Return each client's new cluster, and for each old cluster the new one that it became part of (-1 if it was
    dropped). Old clusters without clients are dropped. New clusters with fewer than `smallest` clients are dropped too,
    as in Algorithm 4. The size is counted in clients: counted in clusters, a cluster that needs no merging would be
    dropped. The clients of dropped clusters join the nearest remaining old cluster. If no cluster is large enough, none
    is dropped.

    >>> near = np.array([[0.0, 9.0, 1.0], [9.0, 0.0, 9.0], [1.0, 9.0, 0.0]])
    >>> clients, clusters = merge_near_clusters(np.array([0, 2, 1, 1]), np.zeros((4, 3)), near, threshold=2.0)
    >>> clients.tolist(), clusters.tolist()
    ([0, 0, 1, 1], [0, 1, 0])
    """
    in_use, rows = np.unique(labels, return_inverse=True)
    component = merge_clusters(between[np.ix_(in_use, in_use)], threshold)
    large = np.bincount(component[rows]) >= smallest
    if not large.any():
        large[:] = True
    left = in_use[large[component]]
    stray = ~large[component[rows]]
    moved = labels.copy()
    moved[stray] = left[to_clusters[np.ix_(stray, left)].argmin(axis=1)]
    part_of = np.full(len(between), NO_CLUSTER)
    part_of[left] = in_order_of_first(component[large[component]])
    return part_of[moved], part_of
