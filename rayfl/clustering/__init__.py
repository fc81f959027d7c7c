"""Which clients belong together: pure functions on arrays, without torch, Ray or client objects."""

from rayfl.clustering.cluster_number import (
    NO_CLUSTER,
    Decisions,
    GranularityNorm,
    granularity,
    granularity_decisions,
    in_norm,
    match_labels,
    split_in_two,
    tune_by_granularity,
)
from rayfl.clustering.clusterability import hopkins
from rayfl.clustering.cuts import average_linkage
from rayfl.clustering.divergence import jensen_shannon, kl_divergences
from rayfl.clustering.finding import find_clusters
from rayfl.clustering.grouping import agglomerative, bipartition, components, dbscan, edc, merge_clusters
from rayfl.clustering.kmeans import best_kmeans, kmeans, kmeans_plus_plus, nearest
from rayfl.clustering.refinement import (
    cluster_losses,
    losses_between_clusters,
    losses_to_clusters,
    merge_near_clusters,
    recluster,
)
from rayfl.clustering.rules import Judgement
from rayfl.clustering.similarity import (
    LowRankMap,
    cosine,
    cosine_by_distances,
    cosine_distances,
    fit_low_rank,
    l2_distances,
    project,
    project_all,
    squared_distances,
    unit,
    update_cosine_distances,
)
from rayfl.clustering.sketching import count_sketch
from rayfl.clustering.useful import UsefulClusters, agree, groups_of_tree, levels_of_tree, useful_clusters

__all__ = [
    "NO_CLUSTER",
    "Decisions",
    "GranularityNorm",
    "Judgement",
    "LowRankMap",
    "UsefulClusters",
    "agglomerative",
    "agree",
    "average_linkage",
    "best_kmeans",
    "bipartition",
    "cluster_losses",
    "components",
    "cosine",
    "cosine_by_distances",
    "cosine_distances",
    "count_sketch",
    "dbscan",
    "edc",
    "find_clusters",
    "fit_low_rank",
    "granularity",
    "granularity_decisions",
    "groups_of_tree",
    "hopkins",
    "in_norm",
    "jensen_shannon",
    "kl_divergences",
    "kmeans",
    "kmeans_plus_plus",
    "l2_distances",
    "levels_of_tree",
    "losses_between_clusters",
    "losses_to_clusters",
    "match_labels",
    "merge_clusters",
    "merge_near_clusters",
    "nearest",
    "project",
    "project_all",
    "recluster",
    "split_in_two",
    "squared_distances",
    "tune_by_granularity",
    "unit",
    "update_cosine_distances",
    "useful_clusters",
]
