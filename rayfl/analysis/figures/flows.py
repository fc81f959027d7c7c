"""Figures of clients that move between clusters: bands between rounds, a line per client, and planted against found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import FixedLocator, MaxNLocator

from rayfl.analysis import views
from rayfl.analysis.colours import colour
from rayfl.analysis.figures.clusters import NO_CLUSTERS
from rayfl.analysis.figures.style import axes, refuse_empty
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

_STEPS = np.linspace(0, 1, 24)
_EASE = 3 * _STEPS**2 - 2 * _STEPS**3
_NONE = -1  # clients without a cluster
_MOST_COLUMNS = 12  # with more rounds, bars are neither drawn nor named


def flows(run: "Run", rounds: Sequence[int] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw clusters as bars in each of these rounds, and clients that move from one cluster to another as bands.

    Without `rounds`, all rounds are drawn in which the tables have every client.
    """
    where = _known(run)
    chosen = list(where.columns) if rounds is None else list(rounds)
    unknown = [number for number in chosen if number not in where]
    if unknown:
        raise InputError(f"rounds={chosen}: the tables have every client only in the rounds {list(where.columns)}")
    if len(chosen) < 2:
        raise InputError("there is nothing to draw: clients move between two rounds, and only one has every client")
    places = np.arange(len(chosen)) if len(chosen) <= _MOST_COLUMNS else np.array(chosen, float)
    ax = _columns(axes(ax), where[chosen], places, bars=len(chosen) <= _MOST_COLUMNS)
    if len(chosen) <= _MOST_COLUMNS:
        ax.set_xticks(places, [str(number) for number in chosen])
        ax.set_yticks([])  # there are gaps between bars
        ax.yaxis.labelpad = 26 if (where[chosen[0]] == _NONE).any() else 10  # beyond the names of clusters
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("round")
    ax.set_ylabel("clients by cluster")
    return ax


def against_truth(run: "Run", round: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw clients as bands from their planted cluster, on the left, to their found cluster, on the right."""
    rows = views.clients_at(run, round).set_index("client")[["true_cluster", "cluster"]]
    refuse_empty(rows.dropna(), "the run has no clusters, or none are planted")
    ax = _columns(axes(ax), rows.fillna(_NONE).astype(int), np.array([0.0, 1.0]), bars=True)
    ax.set_xticks([0, 1], ["planted", "found"])
    ax.set_yticks([])
    return ax


def paths(run: "Run", *, ax: Axes | None = None) -> Axes:
    """Draw a line per client through its clusters over rounds; the lines of a cluster lie next to each other."""
    where = _known(run)
    ax = axes(ax)
    clusters = np.unique(where.to_numpy())
    clusters = clusters[clusters != _NONE]
    levels = np.searchsorted(clusters, where.to_numpy()).astype(float)
    levels[where.to_numpy() == _NONE] = np.nan
    order = np.lexsort((where.index, where.iloc[:, -1]))
    offsets = np.empty(len(where))
    offsets[order] = np.linspace(-0.36, 0.36, len(where)) if len(where) > 1 else 0.0
    lines = np.stack([np.broadcast_to(where.columns.to_numpy(float), levels.shape), levels + offsets[:, None]], axis=2)
    colours = [colour(int(cluster)) for cluster in where.iloc[:, -1]]
    ax.add_collection(LineCollection(list(lines), colors=colours, linewidths=0.5, alpha=0.75))
    ax.set_xlim(float(lines[..., 0].min()), float(lines[..., 0].max()))
    ax.set_ylim(-0.5, len(clusters) - 0.5)
    ax.yaxis.set_major_locator(FixedLocator(range(len(clusters))))
    ax.set_yticklabels([str(cluster) for cluster in clusters])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("round")
    ax.set_ylabel("cluster")
    return ax


def _known(run: "Run") -> pd.DataFrame:
    """Return the cluster of each client in the rounds in which the tables have every client; -1 for none."""
    found = views.moves(run)
    refuse_empty(found, NO_CLUSTERS)
    complete = [number for number in views.complete_rounds(run) if number in found]
    refuse_empty(complete, "the tables have no round with every client yet")
    return found[complete].fillna(_NONE).astype(int)


def _columns(ax: Axes, where: pd.DataFrame, places: np.ndarray, bars: bool) -> Axes:
    """Draw a stack of clusters per column of `where`, and bands for the clients that move between two columns."""
    values = where.to_numpy()
    clusters = np.unique(values)
    gap = 0.02 * len(where) if bars else 0.0
    half = 0.06 * float(np.diff(places).min()) if bars else 0.0
    sizes = (values[:, :, None] == clusters).sum(axis=0)  # (columns, clusters)
    bottoms = np.cumsum(sizes + gap * (sizes > 0), axis=1) - sizes - gap * (sizes > 0)
    for left in range(len(places) - 1):
        _bands(ax, values[:, left : left + 2], clusters, bottoms[left : left + 2], places[left : left + 2], half)
    if bars:
        for column, place in enumerate(places):
            some = sizes[column] > 0
            shades = [colour(int(cluster)) for cluster in clusters[some]]
            ax.bar(np.full(some.sum(), place), sizes[column][some], 2 * half, bottoms[column][some], color=shades)
            if column in (0, len(places) - 1):
                _name(ax, clusters[some], bottoms[column][some] + sizes[column][some] / 2, place, half, column > 0)
    ax.set_xlim(places[0] - half, places[-1] + half)
    ax.set_ylim(0, float((bottoms + sizes).max()))
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    return ax


def _bands(
    ax: Axes, pair: np.ndarray, clusters: np.ndarray, bottoms: np.ndarray, places: np.ndarray, half: float
) -> None:
    codes = np.searchsorted(clusters, pair)
    counts = np.zeros((len(clusters), len(clusters)), dtype=int)
    np.add.at(counts, (codes[:, 0], codes[:, 1]), 1)
    start = bottoms[0][:, None] + np.cumsum(counts, axis=1) - counts  # in the source's bar, sorted by target
    end = bottoms[1][None, :] + np.cumsum(counts, axis=0) - counts  # in the target's bar, sorted by source
    shapes, shades = [], []
    x = places[0] + half + (places[1] - places[0] - 2 * half) * _STEPS
    for source, target in zip(*np.nonzero(counts), strict=True):
        low = start[source, target] + (end[source, target] - start[source, target]) * _EASE
        upper = np.stack([x, low + counts[source, target]], axis=1)[::-1]
        shapes.append(np.concatenate([np.stack([x, low], axis=1), upper]))
        shades.append(colour(int(clusters[source])))
    ax.add_collection(PolyCollection(shapes, facecolors=shades, alpha=0.5, linewidths=0))


def _name(ax: Axes, clusters: np.ndarray, middles: np.ndarray, place: float, half: float, right: bool) -> None:
    for cluster, middle in zip(clusters, middles, strict=True):
        name = "none" if cluster == _NONE else str(cluster)
        side = {"xytext": (3 if right else -3, 0), "ha": "left" if right else "right"}
        at = (place + half if right else place - half, middle)
        ax.annotate(name, at, textcoords="offset points", va="center", annotation_clip=False, **side)  # type: ignore[arg-type]
