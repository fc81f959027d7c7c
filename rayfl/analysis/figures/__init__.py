"""Figures for papers: matplotlib functions that return Axes, one per kind of figure. They draw the data of `views`.

    from rayfl.analysis import figures

    with figures.paper_style():
        ax = figures.curves(runs, "accuracy")
        ax.figure.savefig("accuracy.pdf")

`docs/figures.md` says which function redraws which figure of which paper.
"""

from rayfl.analysis.colours import PALETTE, colour
from rayfl.analysis.figures.clients import client_distribution, worst_clients
from rayfl.analysis.figures.clusters import agreement, cluster_numbers, cluster_sizes, contingency, moves
from rayfl.analysis.figures.costs import cost, recoveries, time_to_target
from rayfl.analysis.figures.decisions import granularity, granularity_by_number, hopkins, tuning
from rayfl.analysis.figures.flows import against_truth, flows, paths
from rayfl.analysis.figures.matrices import similarity
from rayfl.analysis.figures.performance import addon_effect, curves, final, paired_differences, sensitivity
from rayfl.analysis.figures.samples import label_bars, label_distribution
from rayfl.analysis.figures.sketches import plane
from rayfl.analysis.figures.style import paper_style

__all__ = [
    "PALETTE",
    "addon_effect",
    "against_truth",
    "agreement",
    "client_distribution",
    "cluster_numbers",
    "cluster_sizes",
    "colour",
    "contingency",
    "cost",
    "curves",
    "final",
    "flows",
    "granularity",
    "granularity_by_number",
    "hopkins",
    "label_bars",
    "label_distribution",
    "moves",
    "paired_differences",
    "paper_style",
    "paths",
    "plane",
    "recoveries",
    "sensitivity",
    "similarity",
    "time_to_target",
    "tuning",
    "worst_clients",
]
