"""The data of figures and reports, as tidy tables and matrices: pure functions of runs. Nothing here draws.

Runs may be unfinished: their later rounds are simply missing. A run without the data of a view, for example a method
without clusters, gives an empty table with the same columns.
"""

from rayfl.analysis.drift import drifts
from rayfl.analysis.views.clients import client_distribution, worst_clients
from rayfl.analysis.views.clusters import (
    clients_at,
    cluster_sizes,
    cluster_summary,
    complete_rounds,
    contingency,
    flows,
    last_truth,
    moves,
)
from rayfl.analysis.views.costs import cost, recoveries, time_to_target
from rayfl.analysis.views.decisions import granularity, granularity_by_number, hopkins, tuning
from rayfl.analysis.views.matrices import Matrix, Order, centre_similarity, label_divergence, similarity
from rayfl.analysis.views.performance import Band, addon_effect, curves, final, paired_differences, sensitivity
from rayfl.analysis.views.samples import Split, cluster_label_distribution, label_distribution
from rayfl.analysis.views.sketches import Measure, Plane, plane, sketch_similarity

__all__ = [
    "Band",
    "Matrix",
    "Measure",
    "Order",
    "Plane",
    "Split",
    "addon_effect",
    "centre_similarity",
    "client_distribution",
    "clients_at",
    "cluster_label_distribution",
    "cluster_sizes",
    "cluster_summary",
    "complete_rounds",
    "contingency",
    "cost",
    "curves",
    "drifts",
    "final",
    "flows",
    "granularity",
    "granularity_by_number",
    "hopkins",
    "label_distribution",
    "label_divergence",
    "last_truth",
    "moves",
    "paired_differences",
    "plane",
    "recoveries",
    "sensitivity",
    "similarity",
    "sketch_similarity",
    "time_to_target",
    "tuning",
    "worst_clients",
]
