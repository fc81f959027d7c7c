"""Figures about performance: curves, final values, differences to a baseline, sensitivity to a config key."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from rayfl.analysis import views
from rayfl.analysis.colours import INK, RULE, colour
from rayfl.analysis.figures.style import axes, legend_inside, line_look, metric_name, refuse_empty, shown_label

if TYPE_CHECKING:
    from rayfl.results import Run

_NOT_EVALUATED = "no run has been evaluated yet"
_FEW = 15  # lines with more points have no markers


def curves(
    runs: "Sequence[Run]",
    metric: str = "accuracy",
    *,
    band: views.Band = "std",
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric over rounds, a line per label: the mean over seeds, and a band if there are several seeds.

    The band is one sample standard deviation to both sides, or the range. `names` renames labels in the legend.
    """
    found = views.curves(runs, metric, band)
    refuse_empty(found, _NOT_EVALUATED)
    ax = axes(ax)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        look = line_look(number)
        marker = "o" if len(rows) <= _FEW else None
        ax.plot(rows["round"], rows["mean"], label=shown_label(str(label), names), marker=marker, **look)
        if (rows["n"] > 1).any():
            ax.fill_between(rows["round"], rows["low"], rows["high"], color=look["color"], alpha=0.18, linewidth=0)
    ax.set_xlabel("round")
    ax.set_ylabel(metric_name(metric))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_inside(ax)
    return ax


def final(
    runs: "Sequence[Run]",
    metrics: Sequence[str] = ("accuracy", "macro_f1"),
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw bars of metrics at the last evaluated round: a group per label, a bar per metric, +- one deviation."""
    found = views.final(runs, metrics)
    refuse_empty(found, _NOT_EVALUATED)
    ax = _bars(found, "metric", axes(ax), names, metric_name)
    ax.set_ylabel(metric_name(metrics[0]) if len(metrics) == 1 else "value")
    return ax


def addon_effect(
    runs: "Sequence[Run]",
    metric: str = "accuracy",
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw bars of a metric at the last evaluated round: a group per method, a bar without and with its add-ons."""
    found = views.addon_effect(runs, metric)
    refuse_empty(found, _NOT_EVALUATED)
    ax = _bars(found, "addons", axes(ax), names, lambda addons: addons.upper() if addons else "alone")
    ax.set_ylabel(metric_name(metric))
    return ax


def paired_differences(
    runs: "Sequence[Run]",
    baseline: str,
    metric: str = "accuracy",
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw each run's difference to the baseline's run of the same seed: a dot per seed, a bar at their mean."""
    found = views.paired_differences(runs, baseline, metric)
    refuse_empty(found, f"no run has the same seed as a run of {baseline}")
    ax = axes(ax)
    labels = list(dict.fromkeys(found["label"]))
    ax.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    for number, label in enumerate(labels):
        values = found.loc[found["label"] == label, "difference"].to_numpy()
        ax.scatter(values, np.full(len(values), number), s=14, color=colour(0), alpha=0.7, linewidths=0, label=label)
        ax.plot([values.mean()] * 2, [number - 0.28, number + 0.28], color=INK, linewidth=1.6)
    ax.set_yticks(range(len(labels)), [shown_label(label, names) for label in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel(f"{metric_name(metric)}: difference to {shown_label(baseline, names)}")
    return ax


def sensitivity(
    runs: "Sequence[Run]",
    key: str,
    metric: str = "accuracy",
    *,
    band: views.Band = "std",
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric at the last evaluated round over the values of a config key, a line per label.

    If the values span more than a factor of 20, the axis is logarithmic; values that are not numbers are equally
    spaced.
    """
    found = views.sensitivity(runs, key, metric, band)
    refuse_empty(found, _NOT_EVALUATED)
    ax = axes(ax)
    values = list(dict.fromkeys(found["value"]))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        at = rows["value"].to_numpy(float) if numbers else [values.index(value) for value in rows["value"]]
        bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
        spread = bars if (rows["n"] > 1).any() else None
        name = shown_label(str(label), names)
        ax.errorbar(
            at, rows["mean"], yerr=spread, marker="o", capsize=2, elinewidth=0.8, label=name, **line_look(number)
        )
    if numbers:
        _value_axis(ax, sorted(values))
    else:
        ax.set_xticks(range(len(values)), [str(value) for value in values])
    ax.set_xlabel(key)
    ax.set_ylabel(metric_name(metric))
    legend_inside(ax)
    return ax


def _value_axis(ax: Axes, values: list[float]) -> None:
    """Put the ticks at the values that occur."""
    if values[0] > 0 and values[-1] / values[0] > 20:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    elif values[0] == 0 and len(values) > 2 and values[-1] / values[1] > 20:
        ax.set_xscale("symlog", linthresh=values[1])
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    if len(values) <= 8:
        ax.xaxis.set_major_locator(FixedLocator(values))
        ax.set_xticklabels([f"{value:g}" for value in values])


def _bars(found: pd.DataFrame, hue: str, ax: Axes, names: Mapping[str, str] | None, shown: object) -> Axes:
    """Draw a group of bars per label, with one bar per value of `hue`."""
    labels, hues = list(dict.fromkeys(found["label"])), list(dict.fromkeys(found[hue]))
    width = 0.8 / len(hues)
    for number, name in enumerate(hues):
        rows = found[found[hue] == name].set_index("label").reindex(labels)
        at = np.arange(len(labels)) + (number - (len(hues) - 1) / 2) * width
        std = rows["std"].to_numpy(float)
        ax.bar(
            at,
            rows["mean"],
            width * 0.92,
            yerr=None if np.isnan(std).all() else np.nan_to_num(std),
            color=colour(number),
            error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": INK},
            label=shown(name),  # type: ignore[operator]
        )
    ax.set_xticks(range(len(labels)), [shown_label(label, names) for label in labels])
    if sum(map(len, labels)) > 40 or max(map(len, labels)) > 14:
        ax.tick_params(axis="x", labelrotation=30)
        for text in ax.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")
    if len(hues) > 1:  # the legend needs room above the bars
        ax.set_ylim(top=1.14 * ax.get_ylim()[1])
        ax.legend(frameon=False, ncols=len(hues), loc="upper left", borderaxespad=0.2)
    return ax
