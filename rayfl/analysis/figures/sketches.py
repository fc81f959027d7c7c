"""The models that clients trained in a round, as points in a plane."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes

from rayfl.analysis import views
from rayfl.analysis.colours import colour
from rayfl.analysis.figures.style import axes, legend_beside, refuse_empty
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run


def plane(
    run: "Run",
    round: int | None = None,
    *,
    method: views.Plane = "pca",
    by: Literal["found", "planted"] = "found",
    ax: Axes | None = None,
) -> Axes:
    """Draw a dot per client that trained in a round (default: the last); clients with similar models are close.

    Colours show found or planted clusters. The run needs `output.sketches`.
    """
    if by not in ("found", "planted"):
        raise InputError(f"by={by!r} is not allowed; allowed: found, planted")
    found = views.plane(run, round, method)
    refuse_empty(found, "the run has no sketches; run it with output.sketches=50")
    ax = axes(ax)
    clusters = found["cluster" if by == "found" else "true_cluster"].fillna(-1).to_numpy(dtype=np.int64)
    for cluster in np.unique(clusters):
        rows = found[clusters == cluster]
        name = "none" if cluster < 0 else str(cluster)
        ax.scatter(rows["x"], rows["y"], s=12, color=colour(int(cluster)), linewidths=0, alpha=0.85, label=name)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(f"round {found['round'].iloc[0]}")
    if (clusters >= 0).any():
        legend_beside(ax, title=by)
    return ax
