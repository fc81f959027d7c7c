"""Who belongs together, as pure functions on arrays: no torch, no Ray, no clients."""

from rayfl.clustering.cluster_number import (
    NO_CLUSTER,
    Decisions,
    Verdict,
    best_cut,
    granularity,
    granularity_decisions,
    match_labels,
    silhouette_clusters,
    split_in_two,
    tune_by_granularity,
    tune_by_silhouette,
)
from rayfl.clustering.clusterability import hopkins
from rayfl.clustering.divergence import jensen_shannon, kl_divergences
from rayfl.clustering.grouping import agglomerative, bipartition, components, dbscan, edc, merge_clusters
from rayfl.clustering.kmeans import kmeans, kmeans_plus_plus, nearest
from rayfl.clustering.similarity import (
    LowRankMap,
    cosine,
    cosine_distances,
    fit_low_rank,
    l2_distances,
    project,
    project_all,
    squared_distances,
    unit,
)

__all__ = [
    "NO_CLUSTER",
    "Decisions",
    "LowRankMap",
    "Verdict",
    "agglomerative",
    "best_cut",
    "bipartition",
    "components",
    "cosine",
    "cosine_distances",
    "dbscan",
    "edc",
    "fit_low_rank",
    "granularity",
    "granularity_decisions",
    "hopkins",
    "jensen_shannon",
    "kl_divergences",
    "kmeans",
    "kmeans_plus_plus",
    "l2_distances",
    "match_labels",
    "merge_clusters",
    "nearest",
    "project",
    "project_all",
    "silhouette_clusters",
    "split_in_two",
    "squared_distances",
    "tune_by_granularity",
    "tune_by_silhouette",
    "unit",
]
