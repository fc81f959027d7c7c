"""Figures of how methods decide: granularity and number of clusters (FedAC), Hopkins statistic (FedTSDP)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.colours import INK, RULE, colour
from rayfl.analysis.figures.style import STYLES, axes, legend_inside, line_look, metric_name, refuse_empty, shown_label
from rayfl.analysis.labels import labels

if TYPE_CHECKING:
    from rayfl.results import Run

_NOT_REPORTED = "the run reports no granularity; fedac does"


def granularity(run: "Run", *, ax: Axes | None = None) -> Axes:
    """Draw the granularity of each cluster over rounds, their mean in black, and the thresholds dashed."""
    found = views.granularity(run)
    refuse_empty(found, _NOT_REPORTED)
    ax = axes(ax)
    for cluster, rows in found.groupby("cluster"):
        ax.plot(rows["round"], rows["granularity"], ".", color=colour(int(str(cluster))), markersize=3)
    means = found.groupby("round")["granularity"].mean()
    ax.plot(means.index, means, color=INK, label="mean")
    for name, text in (("merge_below", "merge\n below"), ("split_above", "split\n above")):
        limit = found[name].iloc[0]
        if not np.isnan(limit):
            ax.axhline(limit, color=RULE, linestyle="--", linewidth=0.8)
            ax.annotate(f" {text}", (1, limit), xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    ax.set_xlabel("round")
    ax.set_ylabel("granularity")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_inside(ax)
    return ax


def granularity_by_number(
    runs: "Sequence[Run]", *, names: Mapping[str, str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the clusters' mean granularity in the last round against the number of clusters at the start.

    Bars are the standard deviation over clusters. Mean and variance are averaged over seeds.
    """
    found = views.granularity_by_number(runs)
    refuse_empty(found, _NOT_REPORTED)
    ax = axes(ax)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        means = rows.groupby("clusters")[["mean", "variance"]].mean()
        spread = np.sqrt(means["variance"])
        name = shown_label(str(label), names)
        ax.errorbar(means.index, means["mean"], yerr=spread, marker="o", capsize=2, label=name, **line_look(number))
    ax.set_xlabel("number of clusters at the start")
    ax.set_ylabel("granularity")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_inside(ax)
    return ax


def tuning(runs: "Sequence[Run]", *, names: Mapping[str, str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw the number of clusters after each round's tuning, a line per run, and mean granularity in black.

    Granularity is on the right axis, in the same line style as the run's number of clusters.
    """
    found = [(str(label), views.tuning(run)) for label, run in zip(labels(runs), runs, strict=True)]
    found = [(label, rows) for label, rows in found if len(rows)]
    refuse_empty(found, "no run tunes its number of clusters; fedac does")
    ax = axes(ax)
    right = ax.twinx()
    seen: dict[str, int] = {}
    for label, rows in found:
        number = seen.setdefault(label, len(seen))
        first = number == len(seen) - 1 and label not in ax.get_legend_handles_labels()[1]
        name = shown_label(label, names) if first else None
        style = STYLES[number % len(STYLES)]
        look = {**line_look(number), "linestyle": style}
        ax.plot(rows["round"], rows["after"], drawstyle="steps-post", label=name, **look)
        right.plot(rows["round"], rows["granularity"], color="black", linewidth=0.8, linestyle=style)
    ax.set_xlabel("round")
    ax.set_ylabel("number of clusters")
    ax.set_ylim(bottom=0)
    _right_axis(right, "mean granularity (black)")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_inside(ax)
    return ax


def hopkins(run: "Run", metric: str = "accuracy", *, ax: Axes | None = None) -> Axes:
    """Draw a metric over rounds, and on the right axis the Hopkins statistic as dots with its threshold dashed.

    Dots of rounds that clustered are filled. Vertical lines mark rounds that share fewer layers than the one before.
    """
    found = views.hopkins(run, metric)
    refuse_empty(found, "the run has no Hopkins statistic; fedtsdp does")
    ax = axes(ax)
    right = ax.twinx()
    tested = found.dropna(subset=["value"])
    ax.plot(tested["round"], tested["value"], color=colour(0))
    for fill, rows in ((True, found[found["clustered"]]), (False, found[~found["clustered"]])):
        name = "led to clusters" if fill else "did not"
        face = colour(5) if fill else "none"
        right.scatter(
            rows["round"], rows["hopkins"], s=9, facecolors=face, edgecolors=colour(5), linewidths=0.7, label=name
        )
    right.axhline(found["threshold"].iloc[0], color=colour(5), linestyle="--", linewidth=0.8)
    for number in found.loc[found["shrunk"], "round"]:
        ax.axvline(number, color=RULE, linestyle="--", linewidth=0.8, zorder=0)
    ax.set_xlabel("round")
    ax.set_ylabel(metric_name(metric), color=colour(0))
    _right_axis(right, "Hopkins statistic", colour(5))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _right_axis(right: Axes, label: str, shade: str = "black") -> None:
    right.set_ylabel(label, color=shade)
    right.spines["right"].set_visible(True)
    right.spines["top"].set_visible(False)
