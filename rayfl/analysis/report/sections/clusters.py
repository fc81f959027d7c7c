"""Clusters over rounds: their number, sizes, agreement with the planted clusters, and clients that moved."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rayfl.analysis.colours import NOBODY, colour
from rayfl.analysis.report.blocks import Block, Chart, Paragraph, Row, Section
from rayfl.analysis.report.charts import band, figure, line, transparent
from rayfl.analysis.report.sampling import said, stratified
from rayfl.analysis.report.sections.performance import thinned
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.wording import count
from rayfl.analysis.views.clusters import clients_at, cluster_sizes, contingency, flows, last_truth, moves
from rayfl.analysis.views.performance import curves

if TYPE_CHECKING:
    from rayfl.results import Run

#: Maximum of clients and rounds in the strip, areas in the stack, and stages of the flow.
MOST_CLIENTS, MOST_ROUNDS, MOST_AREAS, MOST_STAGES = 200, 120, 16, 6
#: Maximum of clusters for which the flow and the contingency table are drawn.
MOST_CLUSTERS = 40


def over_rounds(study: Study) -> Section | None:
    """Return the number of clusters and the agreement with the planted ones, of all configurations together."""
    charts = []
    titles = {
        "clusters": ("Number of clusters", "clusters"),
        "ari": ("Agreement with the planted clusters", "adjusted Rand index"),
    }
    for metric, (title, y) in titles.items():
        frame = curves(study.runs, metric)
        bands, lines = [], []
        for label in study.distinct:
            rows = thinned(frame[frame["label"] == label])
            if rows.empty:
                continue
            x, look = rows["round"].to_numpy(), study.looks[label]
            if (rows["n"] > 1).any():
                bands.append(band(x, rows["low"], rows["high"], label, look))
            lines.append(line(x, rows["mean"].to_numpy(), label, look, hovertemplate="%{y:.3f}"))
        if lines:
            top = {"range": [min(0, frame["low"].min()) - 0.02, 1.03]} if metric == "ari" else {"rangemode": "tozero"}
            mode = "closest" if len(lines) > 10 else "x unified"
            chart = figure([*bands, *lines], "round", y, showlegend=len(lines) > 1, yaxis=top, hovermode=mode)
            charts.append(Chart(f"clusters-{metric}", chart, title, height=360))
    if not charts:
        return None
    lead = "Means over seeds. An adjusted Rand index of 1 means the planted clusters exactly, 0 means chance."
    known = any(chart.name == "clusters-ari" for chart in charts)
    lead = lead if known else "Means over seeds. No clusters were planted, so there is no truth to compare with."
    return Section("clusters", "Clusters", [Row(charts)], lead)


def sizes(study: Study, number: int) -> list[Block]:
    """Return the sizes of a run's clusters over rounds, stacked."""
    frame = cluster_sizes(study.runs[number])
    if frame.empty or frame["cluster"].nunique() < 2:
        return []
    table = frame.pivot(index="round", columns="cluster", values="size").fillna(0)
    caption = "The width of a colour is the number of clients in that cluster."
    total = table.sum().sort_values(ascending=False, kind="stable")
    kept = sorted(total.index[:MOST_AREAS])
    traces = [_area(table[cluster], f"cluster {cluster}", colour(int(cluster))) for cluster in kept]
    if len(total) > len(kept):
        traces.append(_area(table.drop(columns=kept).sum(axis=1), "all others", NOBODY))
        caption += f" The {len(kept)} largest of {len(total)} clusters are shown one by one."
    chart = figure(traces, "round", "clients", showlegend=True, hovermode="x unified", yaxis={"rangemode": "tozero"})
    return [Chart(f"sizes-{number}", chart, "Sizes of the clusters", caption, height=360)]


def _area(values: pd.Series, name: str, shade: str) -> dict[str, Any]:
    rows = thinned(values.to_frame("size"), MOST_ROUNDS)
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "one",
        "x": rows.index.to_numpy(),
        "y": rows["size"].to_numpy(),
        "name": name,
        "line": {"width": 0.7, "color": shade, "shape": "hv"},
        "fillcolor": transparent(shade, 0.72),
        "hovertemplate": "%{y}",
    }


def movement(study: Study, number: int) -> list[Block]:
    """Return charts of each client's cluster over rounds, of how many clients moved, and between which clusters."""
    run = study.runs[number]
    table = _complete(moves(run))
    if table.shape[1] < 2:
        return []
    blocks: list[Block] = [_strip(run, table, number)]
    moved = flows(run)
    if len(moved):
        moved = moved[moved["source"].notna() & moved["target"].notna()]
        changed = moved[moved["source"] != moved["target"]].groupby("round")["count"].sum()
        per_round = changed.reindex(table.columns[1:], fill_value=0)
        if not per_round.any():
            first, last = table.columns[0], table.columns[-1]
            blocks.append(Paragraph(f"No client changed its cluster between round {first} and round {last}.", "note"))
            return blocks
        bars = thinned(per_round.to_frame("moved"), MOST_ROUNDS)
        trace = {
            "type": "bar",
            "x": bars.index.to_numpy(),
            "y": bars["moved"].to_numpy(),
            "name": "clients that moved",
            "marker": {"color": "#0072b2"},
            "hovertemplate": "round %{x}: %{y} moved<extra></extra>",
        }
        chart = figure([trace], "round", "clients", showlegend=False, bargap=0.15, yaxis={"rangemode": "tozero"})
        title = "Clients that changed their cluster since the evaluated round before"
        charts = [Chart(f"moved-{number}", chart, title, height=330)]
        flow = _flow(table, number)
        blocks.append(Row([*charts, *([flow] if flow is not None else [])]))
    return blocks


def _complete(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds in which (nearly) all clients' clusters are known; all rounds if these are fewer than two.

    In rounds without evaluation, the tables have only the clients that trained.
    """
    if table.empty:
        return table
    known = table.notna().mean()
    complete = table.loc[:, known >= known.max() - 1e-9]
    full = table.loc[:, known > 0.999] if (known > 0.999).sum() >= 2 else complete
    return full if full.shape[1] >= 2 else table


def _strip(run: "Run", table: pd.DataFrame, number: int) -> Chart:
    truth = last_truth(run).reindex(table.index)
    groups = np.column_stack([truth.fillna(-1).to_numpy(dtype=np.int64), _last_known(table)])
    rows = stratified(groups, MOST_CLIENTS)
    rows = rows[np.lexsort((rows, groups[rows, 1], groups[rows, 0]))]
    columns = np.unique(np.linspace(0, table.shape[1] - 1, min(MOST_ROUNDS, table.shape[1])).round().astype(int))
    shown = table.iloc[rows, columns]
    values = shown.to_numpy(dtype=float, na_value=np.nan)
    clients = [f"client {client}" for client in shown.index]
    if (truth >= 0).any():
        clients = [f"{name} (planted {truth[client]})" for name, client in zip(clients, shown.index, strict=True)]
    trace = {
        "type": "heatmap",
        "z": values,
        "x": [str(name) for name in shown.columns],
        "y": clients,
        "hoverongaps": False,
        "hovertemplate": "%{y}, round %{x}: cluster %{z}<extra></extra>",
        "name": "cluster",
        **cluster_scale(values),
    }
    chart = figure(
        [trace],
        "round",
        "clients",
        xaxis={"type": "category", "showgrid": False, "nticks": 12},
        yaxis={"autorange": "reversed", "showticklabels": False, "showgrid": False, "type": "category"},
        showlegend=False,
    )
    order = "planted cluster, then by " if (truth >= 0).any() else ""
    caption = f"A row is a client, a colour is a cluster; rows are sorted by {order}last cluster."
    caption += said(len(rows), len(table))
    if len(columns) < table.shape[1]:
        caption += f" {len(columns)} of {table.shape[1]} rounds are shown, evenly spaced."
    height = int(np.clip(120 + 5 * len(rows), 260, 620))
    return Chart(f"strip-{number}", chart, "Who was in which cluster", caption, height)


def _last_known(table: pd.DataFrame) -> np.ndarray:
    """Return each client's last known cluster, -1 for none. With pandas, 100,000 clients would take a minute."""
    values = table.to_numpy(dtype=float, na_value=np.nan)
    place = values.shape[1] - 1 - np.argmax(np.isfinite(values[:, ::-1]), axis=1)
    return np.nan_to_num(values[np.arange(len(values)), place], nan=-1).astype(np.int64)


def cluster_scale(values: np.ndarray) -> dict[str, Any]:
    """Return the part of a heat map that gives each cluster number its own colour."""
    known = values[np.isfinite(values)]
    top = int(known.max()) if len(known) else 0
    scale: list[list[Any]] = []
    for cluster in range(top + 1):
        scale += [[cluster / (top + 1), colour(cluster)], [(cluster + 1) / (top + 1), colour(cluster)]]
    return {"zmin": -0.5, "zmax": top + 0.5, "colorscale": scale, "showscale": False}


def _flow(table: pd.DataFrame, number: int) -> Chart | None:
    """Return a Sankey diagram between a few evenly spaced rounds; None if there are too many clusters."""
    at = np.unique(np.linspace(0, table.shape[1] - 1, min(MOST_STAGES, table.shape[1])).round().astype(int))
    stages = table.iloc[:, at]
    nodes: dict[tuple[int, int], int] = {}
    names, colours = [], []
    for stage, name in enumerate(stages.columns):
        for cluster in sorted(stages[name].dropna().unique()):
            nodes[stage, int(cluster)] = len(nodes)
            names.append(f"round {name}: cluster {cluster}")
            colours.append(colour(int(cluster)))
    if len(nodes) > MOST_CLUSTERS * 2:
        return None
    links: dict[str, list[Any]] = {"source": [], "target": [], "value": [], "color": []}
    for stage in range(len(at) - 1):
        pair = stages.iloc[:, [stage, stage + 1]].dropna().astype(int)
        counts = pair.value_counts(sort=False)
        for (before, after), size in zip(counts.index.tolist(), counts.tolist(), strict=True):
            links["source"].append(nodes[stage, before])
            links["target"].append(nodes[stage + 1, after])
            links["value"].append(int(size))
            links["color"].append(transparent(colour(before), 0.3))
    trace = {
        "type": "sankey",
        "name": "flow",
        "arrangement": "fixed",
        "node": {
            "label": [""] * len(names),
            "customdata": names,
            "color": colours,
            "pad": 10,
            "thickness": 12,
            "line": {"width": 0},
            "hovertemplate": "%{customdata}: %{value} clients<extra></extra>",
            **_places(stages, nodes),
        },
        "link": {
            **links,
            "hovertemplate": "%{source.customdata} → %{target.customdata}: %{value} clients<extra></extra>",
        },
    }
    marks = [
        {
            "text": str(name) if stage else f"round {name}",
            "x": stage / (len(at) - 1),
            "y": -0.02,
            "xref": "paper",
            "yref": "paper",
            "yanchor": "top",
            "showarrow": False,
        }
        for stage, name in enumerate(stages.columns)
    ]
    chart = figure([trace], annotations=marks, margin={"l": 24, "r": 24, "t": 8, "b": 34}, showlegend=False)
    return Chart(f"flow-{number}", chart, f"From cluster to cluster, over {count(len(at), 'round')}", height=330)


def _places(stages: pd.DataFrame, nodes: dict[tuple[int, int], int]) -> dict[str, list[float]]:
    """Put each node into the column of its round, one cluster below the other in order of their numbers."""
    x, y = [0.0] * len(nodes), [0.0] * len(nodes)
    last = max(stages.shape[1] - 1, 1)
    for stage in range(stages.shape[1]):
        sizes = stages.iloc[:, stage].dropna().astype(int).value_counts().sort_index()
        middle = (sizes.cumsum() - sizes / 2) / sizes.sum()
        for cluster, place in middle.items():
            node = nodes[stage, int(cluster)]  # type: ignore[call-overload]
            # Plotly treats 0 and 1 as "not given".
            x[node], y[node] = float(np.clip(stage / last, 0.001, 0.999)), float(np.clip(place, 0.01, 0.99))
    return {"x": x, "y": y}


def against_truth(study: Study, number: int) -> list[Block]:
    """Return how many clients of each planted cluster are in each found one."""
    run = study.runs[number]
    table = contingency(run)
    if table.empty or max(table.shape) > MOST_CLUSTERS:
        return []
    counts = table.to_numpy()
    trace = {
        "type": "heatmap",
        "z": counts,
        "x": [f"found {name}" for name in table.columns],
        "y": [f"planted {name}" for name in table.index],
        "text": [[str(size) if size else "" for size in row] for row in counts.tolist()],
        "texttemplate": "%{text}",
        "colorscale": [[0, "#f7fbff"], [1, "#4292c6"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{y}, %{x}: %{z} clients<extra></extra>",
        "name": "clients",
    }
    chart = figure(
        [trace],
        xaxis={"side": "top", "type": "category", "showgrid": False},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
        showlegend=False,
        margin={"l": 90, "r": 16, "t": 30, "b": 12},
        meta={"narrow_margin": {"l": 76, "r": 8}},
    )
    at = int(clients_at(run)["round"].iloc[0])
    caption = f"Clients in round {at}. A perfect clustering has one full cell in each row and column."
    height = int(np.clip(90 + 44 * len(table), 180, 700))
    return [Chart(f"contingency-{number}", chart, "Found against planted clusters", caption, height)]
