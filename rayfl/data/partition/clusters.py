"""Kinds that plant clusters of clients with similar labels: cluster_dirichlet, cluster_classes."""

import math

import numpy as np

from rayfl.config.partition import ClusterClassesPartition, ClusterDirichletPartition, ClusteredPartition
from rayfl.data.partition.dealing import Wish
from rayfl.data.partition.labels import ByClasses, ByLabels, balanced_choice, log_gamma, softmax
from rayfl.data.partition.quantity import cluster_of_clients
from rayfl.errors import InputError

_DISTINCT_TRIES = 50


class Planted(ByLabels):
    """Kinds that plant clusters of clients."""

    config: ClusteredPartition

    def clusters(self, clients: int) -> np.ndarray:
        """Return the planted cluster of each client."""
        return cluster_of_clients(self.config)


class ClusterDirichlet(Planted):
    """A Dirichlet draw per cluster, and one per client within its cluster."""

    name = "cluster_dirichlet"
    config: ClusterDirichletPartition

    def wish(self, clients: int, pools: np.ndarray, rng: np.random.Generator) -> Wish:
        """Return the product of the two draws."""
        config, clusters = self.config, self.clusters(clients)
        members = np.bincount(clusters)
        within = log_gamma(rng, np.full((clients, len(pools)), config.alpha_client))
        if self.sized:
            between = log_gamma(rng, np.full((len(members), len(pools)), config.alpha_cluster))
            return Wish(softmax(between[clusters] + within, axis=1))
        # On average, a larger cluster gets more; for clusters of equal size, the concentration is alpha_cluster.
        alphas = np.repeat(config.alpha_cluster * (members / members.mean())[:, None], len(pools), axis=1)
        between = softmax(log_gamma(rng, alphas), axis=0)
        shares = [softmax(within[clusters == k], axis=0) * between[k] for k in range(len(members))]
        return Wish(np.concatenate(shares) * pools)  # clients are sorted by cluster


class ClusterClasses(ByClasses, Planted):
    """Each cluster has a set of classes of its own, and each client some of its cluster's."""

    name = "cluster_classes"
    config: ClusterClassesPartition
    keys = ("classes_cluster", "classes_client")

    def allowed(self, clients: int, present: np.ndarray, pools: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose the clusters' classes, then each client's among them."""
        config, clusters = self.config, self.clusters(clients)
        allowed = np.zeros((clients, len(pools)), dtype=bool)
        of_cluster = _distinct_choice(config.clusters, config.classes_cluster, len(present), rng, self.place)
        for k, chosen in enumerate(of_cluster):
            members = np.flatnonzero(clusters == k)
            picks = present[chosen][balanced_choice(len(members), config.classes_client, config.classes_cluster, rng)]
            allowed[members[:, None], picks] = True
        return allowed


def _distinct_choice(
    clusters: int, count: int, classes: int, rng: np.random.Generator, place: str = "partition"
) -> np.ndarray:
    """Balanced choice in which no two clusters have the same classes: two such clusters would be one."""
    if clusters > math.comb(classes, count):
        raise InputError(
            f"partition.clusters={clusters}: only {math.comb(classes, count)} clusters can differ with"
            f" {place}.classes_cluster={count} of {classes} classes: use fewer clusters or another"
            " classes_cluster"
        )
    for _ in range(_DISTINCT_TRIES):
        chosen = np.sort(balanced_choice(clusters, count, classes, rng), axis=1)
        if len(np.unique(chosen, axis=0)) == clusters:
            return chosen
    # Nearly all combinations are in use: distinct choices are more important than balanced ones.
    seen: dict[tuple[int, ...], None] = {}
    for row in chosen:
        while tuple(row) in seen:
            row = np.sort(rng.permutation(classes)[:count])
        seen[tuple(row)] = None
    return np.array(list(seen))
