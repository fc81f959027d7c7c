"""What figures and reports show, as tidy tables and matrices: pure functions of runs. Nothing here draws.

Runs may be unfinished: what they lack is missing. A run without what a view shows, such as a method without clusters,
gives an empty table with the same columns.
"""

from rayfl.analysis.views.clients import client_distribution, worst_clients
from rayfl.analysis.views.clusters import (
    clients_at,
    cluster_sizes,
    cluster_summary,
    complete_rounds,
    contingency,
    flows,
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
    "final",
    "flows",
    "granularity",
    "granularity_by_number",
    "hopkins",
    "label_distribution",
    "label_divergence",
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
