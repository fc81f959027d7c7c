"""Figures about costs: a metric against bytes or seconds, the cost to reach a target, and recoveries."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes

from rayfl.analysis import views
from rayfl.analysis.colours import INK, RULE, colour
from rayfl.analysis.figures.performance import curves
from rayfl.analysis.figures.style import axes, legend_inside, line_look, metric_name, refuse_empty, shown_label
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

#: What a run can spend: for each column, the number by which it is divided, and its name on the axis.
_SPENT = {
    "bytes": (1e6, "MB sent and received"),
    "bytes_up": (1e6, "MB sent by clients"),
    "bytes_down": (1e6, "MB received by clients"),
    "seconds": (1.0, "seconds"),
    "round": (1.0, "rounds"),
}
Spent = Literal["bytes", "bytes_up", "bytes_down", "seconds", "round"]


def cost(
    runs: "Sequence[Run]",
    spent: Spent = "bytes",
    metric: str = "accuracy",
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric against what was spent so far, a line per label: both are means over seeds at the same round."""
    unit, name = _known(spent, tuple(_SPENT))
    found = views.cost(runs, metric)
    refuse_empty(found, "no run has been evaluated yet")
    ax = axes(ax)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        # Leave out rounds that not all seeds have reached: the line would jump there.
        runs_there = rows.groupby("round")["run"].transform("nunique")
        there = rows[runs_there == runs_there.max()]
        means = there.groupby("round", as_index=False).mean(numeric_only=True)
        ax.plot(means[spent] / unit, means["value"], label=shown_label(str(label), names), **line_look(number))
    ax.set_xlabel(name)
    ax.set_ylabel(metric_name(metric))
    ax.set_xlim(left=0)
    legend_inside(ax)
    return ax


def time_to_target(
    runs: "Sequence[Run]",
    target: float,
    spent: Literal["round", "bytes", "seconds"] = "round",
    metric: str = "accuracy",
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what each run spent to reach a target: a dot per run, and a bar at the mean if all runs reach it.

    If some runs of a label do not reach it, the figure says how many do.
    """
    unit, name = _known(spent, ("round", "bytes", "seconds"))
    found = views.time_to_target(runs, target, metric)
    refuse_empty(found, "no run has been evaluated yet")
    ax = axes(ax)
    labels = list(dict.fromkeys(found["label"]))
    for number, label in enumerate(labels):
        rows = found[found["label"] == label]
        values = rows.loc[rows["reached"], spent].to_numpy() / unit
        ax.scatter(values, np.full(len(values), number), s=14, color=colour(0), alpha=0.7, linewidths=0, label=label)
        if rows["reached"].all():
            ax.plot([values.mean()] * 2, [number - 0.28, number + 0.28], color=INK, linewidth=1.6)
        else:
            note = f"{len(values)} of {len(rows)} reach it"
            ax.annotate(note, (0.99, number), xycoords=("axes fraction", "data"), ha="right", va="center", color=INK)
    ax.set_yticks(range(len(labels)), [shown_label(label, names) for label in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"{name} to {metric_name(metric)} {target:g}")
    return ax


def recoveries(run: "Run", metric: str = "accuracy", *, ax: Axes | None = None) -> Axes:
    """Draw a metric over rounds, with a line at each recovery from a failure, and above it the number of failures."""
    found = views.recoveries(run)
    refuse_empty(found, "the run had no failures to recover from")
    ax = curves([run], metric, ax=ax)
    for number, count in found.groupby("round").size().items():
        ax.axvline(float(str(number)), color=RULE, linestyle="--", linewidth=0.8, zorder=0)
        if count > 1:
            ax.annotate(f"{count}x", (float(str(number)), 1.01), xycoords=("data", "axes fraction"), ha="center")
    return ax


def _known(spent: str, allowed: Sequence[str]) -> tuple[float, str]:
    if spent not in allowed:
        raise InputError(f"spent={spent!r} is not allowed; allowed: {', '.join(allowed)}")
    return _SPENT[spent]
