"""Figures of clusters over rounds: sizes, number, agreement with the planted ones, and each client's cluster."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.colours import RULE, colour
from rayfl.analysis.figures.performance import curves
from rayfl.analysis.figures.style import (
    HEAT_MAP,
    axes,
    cluster_colours,
    legend_beside,
    legend_inside,
    line_look,
    refuse_empty,
)
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

NO_CLUSTERS = "the run has no clusters"
_MOST_CELLS = 400  # up to this number of cells, a contingency table has the counts written in them


def cluster_sizes(run: "Run", *, kind: Literal["stacked", "lines"] = "stacked", ax: Axes | None = None) -> Axes:
    """Draw how many clients each cluster has over rounds. The legend names clusters with their size at the end."""
    if kind not in ("stacked", "lines"):
        raise InputError(f"kind={kind!r} is not allowed; allowed: stacked, lines")
    found = views.cluster_sizes(run)
    refuse_empty(found, NO_CLUSTERS)
    ax = axes(ax)
    sizes = found.pivot(index="round", columns="cluster", values="size").fillna(0).astype(int)
    shown = [f"{cluster} ({size})" for cluster, size in sizes.iloc[-1].items()]
    rounds = sizes.index.to_numpy()
    if kind == "stacked":
        ax.stackplot(
            rounds,
            sizes.to_numpy().T,
            labels=shown,
            colors=[colour(int(str(k))) for k in sizes],
            linewidth=0.3,
            edgecolor="white",
        )
        ax.margins(x=0, y=0)
    else:
        for cluster, label in zip(sizes, shown, strict=True):
            ax.plot(rounds, sizes[cluster], color=colour(int(str(cluster))), label=label)
        ax.set_ylim(bottom=0)
    ax.set_xlabel("round")
    ax.set_ylabel("clients")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(ax, title="cluster (size)")
    return ax


def cluster_numbers(runs: "Sequence[Run]", *, names: Mapping[str, str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw the number of clusters over rounds, a line per label; a dashed line shows the number of planted clusters."""
    refuse_empty(views.curves(runs, "clusters"), NO_CLUSTERS)
    ax = curves(runs, "clusters", names=names, ax=ax)
    planted = {run.clients["true_cluster"].nunique() for run in runs} - {0}
    if len(planted) == 1:
        ax.axhline(planted.pop(), color=RULE, linestyle="--", linewidth=0.8, zorder=0, label="planted")
        legend_inside(ax)
    ax.set_ylabel("number of clusters")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def agreement(run: "Run", measures: Sequence[str] = ("ari", "nmi", "misclustering"), *, ax: Axes | None = None) -> Axes:
    """Draw how well found clusters agree with the planted ones over rounds, and the share of the largest cluster."""
    found = views.cluster_summary(run)
    known = {"ari": "ARI", "nmi": "NMI", "misclustering": "misclustering", "largest_share": "share of the largest"}
    unknown = [name for name in measures if name not in known]
    if unknown:
        raise InputError(f"measures={list(measures)}: {unknown[0]} is not one of {', '.join(known)}")
    refuse_empty(found, NO_CLUSTERS)
    refuse_empty(found[list(measures)].dropna(how="all"), "no clusters are planted in the run's data")
    ax = axes(ax)
    for number, name in enumerate(measures):
        ax.plot(found["round"], found[name], label=known[name], **line_look(number))
    ax.set_xlabel("round")
    ax.set_ylim(min(0.0, float(found[list(measures)].min().min())) - 0.02, 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_inside(ax)
    return ax


def moves(run: "Run", *, ax: Axes | None = None) -> Axes:
    """Draw a strip per client: its cluster in each round by colour, grey where it is not known.

    Clients are sorted by their last planted cluster, which is shown on the left, and then by their last cluster.
    """
    found = views.moves(run)
    refuse_empty(found, NO_CLUSTERS)
    ax = axes(ax)
    truth = views.last_truth(run).reindex(found.index)
    planted = truth.fillna(-1).to_numpy(dtype=np.int64)
    clusters = found.astype("float64").to_numpy(na_value=np.nan)
    last = found.ffill(axis=1).iloc[:, -1].fillna(-1).to_numpy(dtype=np.int64)
    order = np.lexsort((found.index, last, planted))
    most = int(np.nanmax(clusters))
    rounds = found.columns.to_numpy()
    ax.imshow(
        np.ma.masked_invalid(clusters[order]),
        aspect="auto",
        cmap=cluster_colours(most),
        vmin=-0.5,
        vmax=most + 0.5,
        interpolation="none",
        extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(order) - 0.5, -0.5),
    )
    if (planted >= 0).any():
        side_strip(ax, planted[order], "left")
        ax.yaxis.labelpad = 12  # beyond the strip
    ax.set_xlabel("round")
    ax.set_ylabel("client, by planted cluster" if (planted >= 0).any() else "client, by last cluster")
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def contingency(run: "Run", round: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how many clients of each planted cluster are in each found cluster; each cell shows the count."""
    found = views.contingency(run, round)
    refuse_empty(found, "the run has no clusters, or none are planted")
    ax = axes(ax)
    counts = found.to_numpy()
    ax.imshow(counts, cmap=HEAT_MAP, vmin=0, vmax=counts.max(), aspect="auto")
    ax.set_xticks(range(counts.shape[1]), found.columns.astype(str))
    ax.set_yticks(range(counts.shape[0]), found.index.astype(str))
    if counts.size <= _MOST_CELLS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                shade = "white" if count > 0.55 * counts.max() else "black"
                ax.text(column, row, str(count), ha="center", va="center", color=shade)
    ax.set_xlabel("found cluster")
    ax.set_ylabel("planted cluster")
    ax.spines[:].set(visible=True, color=RULE)
    ax.tick_params(length=0)
    return ax


def side_strip(ax: Axes, clusters: np.ndarray, side: Literal["left", "top"]) -> None:
    """Draw a thin strip beside an image; it shows the cluster of each row or column by colour."""
    most = max(int(clusters.max()), 0)
    shown = np.ma.masked_less(clusters, 0)
    box = (-0.035, 0.0, 0.025, 1.0) if side == "left" else (0.0, 1.01, 1.0, 0.025)
    strip = ax.inset_axes(box)
    image = shown[:, None] if side == "left" else shown[None, :]
    strip.imshow(image, aspect="auto", cmap=cluster_colours(most), vmin=-0.5, vmax=most + 0.5, interpolation="none")
    strip.set_axis_off()
