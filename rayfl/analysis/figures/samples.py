"""Figures of the classes of clients' samples: a heat map over clients, and bars per client or cluster."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.colours import colour
from rayfl.analysis.figures.clusters import side_strip
from rayfl.analysis.figures.style import HEAT_MAP, axes, legend_beside, refuse_empty
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

_MOST_NAMES = 30  # bars whose names fit


def label_distribution(
    run: "Run", split: views.Split = "train", *, trust: bool = False, ax: Axes | None = None
) -> Axes:
    """Draw how many samples of each class every client has; clients are sorted by planted cluster, shown above."""
    counts = views.label_distribution(run, split, trust)
    truth = views.last_truth(run).reindex(counts.index)
    planted = truth.fillna(-1).to_numpy(dtype=np.int64)
    order = np.argsort(planted, kind="stable")
    ax = axes(ax)
    image = ax.imshow(counts.to_numpy()[order].T, aspect="auto", cmap=HEAT_MAP, vmin=0, interpolation="none")
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03, label="samples")
    bar.outline.set_visible(False)
    if (planted >= 0).any():
        side_strip(ax, planted[order], "top")
    ax.set_xlabel("client, by planted cluster" if (np.diff(order) < 0).any() else "client")
    ax.set_ylabel("class")
    if (np.diff(order) < 0).any():
        ax.set_xticks([])
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.tick_params(length=0)
    return ax


def label_bars(
    run: "Run",
    by: Literal["client", "found", "planted"] = "planted",
    *,
    split: views.Split = "train",
    round: int | None = None,
    trust: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a bar per client, found cluster or planted cluster: its samples, by class. Cluster names have sizes."""
    if by not in ("client", "found", "planted"):
        raise InputError(f"by={by!r} is not allowed; allowed: client, found, planted")
    if by == "client":
        counts = views.label_distribution(run, split, trust)
        shown = counts.index.astype(str).tolist()
    else:
        counts = views.cluster_label_distribution(run, split, round, by, trust)
        refuse_empty(counts, "the run has no clusters, or none are planted")
        column = views.clients_at(run, round)["cluster" if by == "found" else "true_cluster"]
        sizes = column.value_counts()
        shown = [f"{cluster} ({sizes[cluster]})" for cluster in counts.index]
    ax = axes(ax)
    _stack(ax, counts)
    if len(counts) <= _MOST_NAMES:
        ax.set_yticks(range(len(counts)), shown)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(len(counts) - 0.5, -0.5)
    ax.set_xlabel("samples")
    ax.set_ylabel("client" if by == "client" else f"{by} cluster (clients)")
    legend_beside(ax, title="class")
    return ax


def _stack(ax: Axes, counts: pd.DataFrame) -> None:
    left = np.zeros(len(counts), dtype=int)
    for number, name in enumerate(counts):
        widths = counts[name].to_numpy()
        ax.barh(np.arange(len(counts)), widths, 0.85, left=left, color=colour(number), label=str(name), linewidth=0)
        left = left + widths
