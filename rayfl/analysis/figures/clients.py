"""Figures about clients: the distribution of a metric over clients, and the worst clients."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.figures.style import axes, legend_inside, line_look, metric_name, refuse_empty, shown_label

if TYPE_CHECKING:
    from rayfl.results import Run

_NO_VALUES = "no client has a value yet"
_MOST_TICKS = 20  # clients whose numbers fit under the axis


def client_distribution(
    runs: "Sequence[Run]",
    metric: str = "accuracy",
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of clients whose value is at most x, a line per label; clients of all seeds together."""
    found = views.client_distribution(runs, metric)
    refuse_empty(found, _NO_VALUES)
    ax = axes(ax)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        ax.ecdf(rows["value"].to_numpy(float), label=shown_label(str(label), names), **line_look(number))
    ax.set_xlabel(f"{metric_name(metric)} of a client")
    ax.set_ylabel("share of clients")
    ax.set_ylim(0, 1.02)
    legend_inside(ax)
    return ax


def worst_clients(
    runs: "Sequence[Run]",
    metric: str = "accuracy",
    count: int = 10,
    *,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the clients with the worst values, worst first: the mean over runs at each rank, a line per label.

    For a single run, the axis shows the clients' numbers.
    """
    found = views.worst_clients(runs, metric, count)
    refuse_empty(found, _NO_VALUES)
    ax = axes(ax)
    found = found.assign(rank=found.groupby(["label", "run"]).cumcount() + 1)
    for number, (label, rows) in enumerate(found.groupby("label", sort=False)):
        means = rows.groupby("rank")["value"].mean()
        ax.plot(means.index, means, marker="o", label=shown_label(str(label), names), **line_look(number))
    if found["run"].nunique() == 1 and len(found) <= _MOST_TICKS:
        ax.set_xticks(found["rank"], found["client"].astype(str))
        ax.set_xlabel("client, worst first")
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("rank of the client, worst first")
    ax.set_ylabel(metric_name(metric))
    legend_inside(ax)
    return ax
