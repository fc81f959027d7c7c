"""The style of figures, and what all of them share: the preset for papers, new axes, names of metrics."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap

from rayfl.analysis.colours import HEAT, INK, NOBODY, colour
from rayfl.errors import InputError

#: Inches. A column of a two-column paper, and its whole width.
WIDTHS = {"column": 3.3, "page": 6.9}

STYLES = ("-", "--", ":", "-.")
HEAT_MAP = LinearSegmentedColormap.from_list("heat", HEAT)

_NAMES = {"macro_f1": "macro-F1", "ari": "ARI", "nmi": "NMI", "macro_f1_mean": "macro-F1, mean over clients"}
_NAMES |= {"accuracy_mean": "accuracy, mean over clients", "accuracy_worst10": "accuracy of the worst tenth"}


@contextmanager
def paper_style(width: Literal["column", "page"] | float = "column", height: float | None = None) -> Iterator[None]:
    """Make figures that are created and saved in this block fit a paper: column width, 8-point text, embedded fonts.

    `width` is a name or a number of inches. `height` is in inches; the default is 0.68 of the width, or of a column's
    width if that is smaller.
    """
    if isinstance(width, str) and width not in WIDTHS:
        raise InputError(f"width={width!r} is not allowed; allowed: {', '.join(WIDTHS)}, or a number of inches")
    inches = WIDTHS[width] if isinstance(width, str) else width
    size = (inches, height or 0.68 * min(inches, WIDTHS["column"]))
    with mpl.rc_context({**_PAPER, "figure.figsize": size}):
        yield


_PAPER: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # TrueType, because many journals refuse the default, Type 3
    "ps.fonttype": 42,
    "savefig.dpi": 300,
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}


def axes(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure."""
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def refuse_empty(found: object, what: str) -> None:
    """Refuse to draw an empty figure, because it would look like a result."""
    if not len(found):  # type: ignore[arg-type]
        raise InputError(f"there is nothing to draw: {what}")


def metric_name(metric: str) -> str:
    """Return how a metric is written on an axis."""
    return _NAMES.get(metric, metric.replace("_", " "))


def shown_label(label: str, names: Mapping[str, str] | None) -> str:
    """Return the caller's name for a label, or the label itself."""
    return label if names is None else names.get(label, label)


def line_look(number: int) -> dict[str, Any]:
    """Return colour and line style of the n-th line: the first eight are solid, the next dashed, and so on."""
    return {"color": colour(number % 8), "linestyle": STYLES[number // 8 % len(STYLES)]}


def cluster_colours(most: int) -> Colormap:
    """Return a map from cluster numbers 0 to `most` to their colours; missing values are grey."""
    return ListedColormap([colour(number) for number in range(most + 1)]).with_extremes(bad=NOBODY)


def legend_inside(ax: Axes) -> None:
    """Put a legend where it covers least; a single line needs none."""
    if len(ax.get_legend_handles_labels()[0]) > 1:
        ax.legend(frameon=False)


def legend_beside(ax: Axes, most: int = 16, **options: Any) -> None:
    """Put the legend to the right of the axes; show at most `most` entries."""
    handles, texts = ax.get_legend_handles_labels()
    title = f"{options.pop('title', '')}" if len(handles) <= most else f"{most} of {len(handles)}"
    ax.legend(
        handles[:most],
        texts[:most],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        title=title or None,
        labelspacing=0.25,
        **options,
    )
