"""What is in clusters: the similarity between clients, next to found and planted clusters, and clients' classes."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rayfl.analysis.report.blocks import Block, Chart, Row
from rayfl.analysis.report.charts import SEQUENTIAL, axis, figure, reversed_scale
from rayfl.analysis.report.sampling import said, stratified
from rayfl.analysis.report.sections.clusters import cluster_scale
from rayfl.analysis.report.study import Study
from rayfl.analysis.views.clusters import clients_at
from rayfl.analysis.views.matrices import similarity
from rayfl.analysis.views.samples import label_distribution
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

#: Maximum of clients in a heat map.
MOST_CLIENTS = 120
#: Files that show that a data set is on this machine: the report never downloads one.
_FILES = {
    "mnist": ("MNIST/raw",),
    "fashion_mnist": ("FashionMNIST/raw",),
    "cifar10": ("cifar-10-batches-py", "cifar10.npz"),
    "cifar100": ("cifar-100-python",),
    "svhn": ("train_32x32.mat",),
}


def matrix(study: Study, number: int) -> list[Block]:
    """Return the matrix by which the method compared its clients, with found and planted clusters next to it."""
    found = similarity(study.runs[number])
    if not len(found):
        return []
    rows = stratified(np.column_stack([found.cluster, found.truth]), MOST_CLIENTS)
    shown = found.only(rows)
    names = [f"client {client}" for client in shown.members]
    scale = SEQUENTIAL if found.is_similarity else reversed_scale()
    apart = shown.values[~np.eye(len(shown), dtype=bool)]
    heat = {
        "type": "heatmap",
        "z": np.round(shown.values, 3),
        "x": names,
        "y": names,
        "colorscale": scale,
        "zmin": apart.min() if apart.size else 0,
        "zmax": apart.max() if apart.size else 1,
        "hovertemplate": "%{y}, %{x}: %{z:.3f}<extra></extra>",
        "name": found.measure,
        "colorbar": {"thickness": 10, "len": 0.9, "x": 1.02, "outlinewidth": 0},
    }
    strips, more = _strips(names, {"found": shown.cluster, "planted": shown.truth}, main=0.86)
    quiet = {"showticklabels": False, "showgrid": False, "type": "category", "title": {"text": ""}}
    chart = figure(
        [heat, *strips],
        xaxis={**quiet, "domain": [0, 0.86]},
        yaxis={**quiet, "autorange": "reversed"},
        showlegend=False,
        margin={"l": 16, "r": 70, "t": 34, "b": 12},
        meta={"narrow_margin": {"l": 6, "r": 48}},
        **more,
    )
    measure = found.measure[0].upper() + found.measure[1:]
    caption = (
        f"{measure} after round {found.round}; dark means alike. Rows and columns"
        " are clients, ordered by found cluster. The strips on the right show each row's found and planted cluster."
    )
    caption += said(len(shown), len(found))
    return [Chart(f"similarity-{number}", chart, measure, caption, height=520)]


def labels_of_clients(study: Study, number: int, known: dict[str, Any]) -> list[Block]:
    """Return which classes clients and clusters have; `known` caches partitions, since many runs share one."""
    run = study.runs[number]
    counts = _counts(run, known)
    if counts is None or counts.empty:
        return []
    at = clients_at(run).set_index("client")
    cluster, truth = (
        at[name].reindex(counts.index).fillna(-1).to_numpy(dtype=np.int64) for name in ("cluster", "true_cluster")
    )
    rows = stratified(np.column_stack([cluster, truth]), MOST_CLIENTS)
    rows = rows[np.lexsort((rows, truth[rows], cluster[rows]))]
    charts = [_by_client(counts.iloc[rows], cluster[rows], truth[rows], number, len(counts))]
    if (cluster >= 0).any() and len(np.unique(cluster[cluster >= 0])) > 1:
        together = counts[cluster >= 0].groupby(pd.Series(cluster[cluster >= 0], counts.index[cluster >= 0])).sum()
        charts.append(_by_cluster(together, number))
    return [Row(charts)]


def _by_client(counts: pd.DataFrame, cluster: np.ndarray, truth: np.ndarray, number: int, of: int) -> Chart:
    sizes = counts.to_numpy(float)
    names = [f"client {client}" for client in counts.index]
    heat = {
        "type": "heatmap",
        "z": np.round(sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1), 3),
        "x": [str(name) for name in counts.columns],
        "y": names,
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "showscale": False,
        "hovertemplate": "%{y}, class %{x}: %{z:.1%} of its samples<extra></extra>",
        "name": "share of the class",
    }
    strips, more = _strips(names, {"found": cluster, "planted": truth}, main=0.82)
    chart = figure(
        [heat, *strips],
        "class",
        xaxis={"type": "category", "showgrid": False, "domain": [0, 0.82]},
        yaxis={"autorange": "reversed", "type": "category", "showticklabels": False, "showgrid": False},
        showlegend=False,
        margin={"l": 16, "r": 16, "t": 34, "b": 46},
        meta={"narrow_margin": {"l": 6, "r": 8}},
        **more,
    )
    caption = "A row is a client; dark means a large share of its training samples. Rows are sorted by cluster."
    height = int(np.clip(140 + 8 * len(names), 300, 520))
    return Chart(f"labels-{number}", chart, "Classes of each client", caption + said(len(names), of), height)


def _by_cluster(counts: pd.DataFrame, number: int) -> Chart:
    shares = counts.to_numpy(float)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1)
    heat = {
        "type": "heatmap",
        "z": np.round(shares, 3),
        "x": [str(name) for name in counts.columns],
        "y": [f"cluster {name}" for name in counts.index],
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}, class %{x}: %{z:.1%}<extra></extra>",
        "name": "share of the class",
    }
    chart = figure(
        [heat],
        "class",
        xaxis={"type": "category", "showgrid": False},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
        showlegend=False,
        margin={"l": 76, "r": 16, "t": 34, "b": 46},
        meta={"narrow_margin": {"l": 70, "r": 8}},
    )
    height = int(np.clip(140 + 34 * len(counts), 240, 520))
    caption = "Share of each class among the training samples of a cluster's clients."
    return Chart(f"labels-clusters-{number}", chart, "Classes of each found cluster", caption, height)


def _strips(
    names: list[str], labels: dict[str, np.ndarray], main: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return thin heat maps of clusters, right of the main one, and their axes; leave out those without any labels."""
    there = {name: values for name, values in labels.items() if (values >= 0).any()}
    width = (1 - main) / 2
    strips, axes = [], {}
    for place, (name, values) in enumerate(there.items(), start=2):
        column = np.where(values >= 0, values.astype(float), np.nan)[:, None]
        strips.append(
            {
                "type": "heatmap",
                "z": column,
                "x": [name],
                "y": names,
                "xaxis": f"x{place}",
                "hoverongaps": False,
                "hovertemplate": f"%{{y}}: {name} cluster %{{z}}<extra></extra>",
                "name": f"{name} cluster",
                **cluster_scale(column),
            }
        )
        begin = main + (place - 2) * width + 0.02
        span: dict[str, Any] = {
            "domain": [begin, begin + width - 0.02],
            "side": "top",
            "showgrid": False,
            "tickangle": -40,
        }
        axes[f"xaxis{place}"] = axis(type="category", **span)
    return strips, axes


def _counts(run: "Run", known: dict[str, Any]) -> pd.DataFrame | None:
    """Return the counts of classes; None if they need code that the run names, or files that are not here."""
    tree = run.config.to_tree()
    key = json.dumps([tree.get(name) for name in ("seed", "task", "data", "partition")], sort_keys=True)
    if key not in known:
        try:
            known[key] = label_distribution(run) if _is_here(run) else None
        except InputError:
            known[key] = None
    return known[key]


def _is_here(run: "Run") -> bool:
    from rayfl.data.sources.files import data_root

    source = run.config.data.source
    if source not in _FILES:
        return True
    root = data_root(run.config.data)
    return any((root / name).exists() for name in _FILES[source])
