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
    "best_cut",
    "cosine",
    "cosine_distances",
    "fit_low_rank",
    "granularity",
    "granularity_decisions",
    "l2_distances",
    "match_labels",
    "project",
    "project_all",
    "silhouette_clusters",
    "split_in_two",
    "squared_distances",
    "tune_by_granularity",
    "tune_by_silhouette",
    "unit",
]
