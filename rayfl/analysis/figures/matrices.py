"""Heat maps of the similarity between clients or clusters."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.ticker import MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.figures.clusters import side_strip
from rayfl.analysis.figures.style import HEAT_MAP, axes, refuse_empty
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

_MOST_TICKS = 25  # members whose numbers fit beside the image


def similarity(
    of: "Run | views.Matrix",
    round: int | None = None,
    *,
    order: views.Order = "cluster",
    cluster: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a matrix between clients: darker means more similar. Strips show found (left) and planted clusters (top),
    if there are several.

    `of` is a run that reports a matrix, or a matrix from `views.label_divergence`, `views.centre_similarity` or
    `views.sketch_similarity`. With `cluster`, only its clients are drawn.
    """
    matrix = of.ordered(order) if isinstance(of, views.Matrix) else views.similarity(of, round, order)
    refuse_empty(
        matrix, "the run reports no matrix; set method.report_similarity (fedac) or method.report_divergence (fedtsdp)"
    )
    if cluster is not None:
        if cluster not in matrix.cluster:
            there = np.unique(matrix.cluster[matrix.cluster >= 0]).tolist()
            raise InputError(f"cluster={cluster}: no client is in it; there are the clusters {there}")
        matrix = matrix.only(np.flatnonzero(matrix.cluster == cluster))
    ax = axes(ax)
    map_, low, high = _range(matrix)
    image = ax.imshow(matrix.values, cmap=map_, vmin=low, vmax=high, interpolation="none")
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03, label=matrix.measure)
    bar.outline.set_visible(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    between_clusters = np.array_equal(matrix.members, matrix.cluster)
    left, top = (not between_clusters and len(np.unique(found)) > 1 for found in (matrix.cluster, matrix.truth))
    if left:
        side_strip(ax, matrix.cluster, "left")
    if top:
        side_strip(ax, matrix.truth, "top")
    ax.set_xlabel("cluster" if between_clusters else "client")
    _ticks(ax, matrix, order, pad=9 if left else 3)
    return ax


def _range(matrix: views.Matrix) -> tuple[Colormap | str, float, float]:
    """Return the colour map and its range. For distances, the diagonal (each member with itself) does not count."""
    values = matrix.values
    if matrix.is_similarity and values.min() < -0.05:
        return "RdBu_r", -1.0, 1.0
    others = values[~np.eye(len(values), dtype=bool)] if len(values) > 1 else values
    if matrix.is_similarity:
        return HEAT_MAP, float(min(others.min(), values.min())), float(values.max())
    return HEAT_MAP.reversed(), 0.0, float(others.max()) or 1.0


def _ticks(ax: Axes, matrix: views.Matrix, order: views.Order, pad: float) -> None:
    """Label the members if there is room; else number the rows, but only if they are in order of client numbers."""
    if len(matrix) <= _MOST_TICKS:
        names = [str(member) for member in matrix.members]
        ax.set_xticks(range(len(matrix)), names)
        ax.set_yticks(range(len(matrix)), names)
    elif order == "client":
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    else:
        ax.set_xticks([])
        ax.set_yticks([])
    ax.tick_params(axis="y", pad=pad)
