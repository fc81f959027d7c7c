"""How methods decide: granularity and the number of clusters (FedAC), the Hopkins statistic (FedTSDP)."""

from typing import Any

import numpy as np

from rayfl.analysis.colours import PALETTE, colour
from rayfl.analysis.report.blocks import Block, Chart, Row
from rayfl.analysis.report.charts import Look, axis, figure, line
from rayfl.analysis.report.sections.performance import thinned
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.wording import metric_name, number
from rayfl.analysis.views.decisions import granularity, hopkins, tuning

_MOST_CLUSTERS = 30
_MOST_POINTS = 150


def decisions(study: Study, run_number: int) -> list[Block]:
    """Return the charts of one run; none for methods that do not report these values."""
    charts = [*_granularity(study, run_number), *_tuning(study, run_number), *_hopkins(study, run_number)]
    return [Row(charts)] if charts else []


def _granularity(study: Study, run_number: int) -> list[Chart]:
    frame = granularity(study.runs[run_number])
    clusters = sorted(frame["cluster"].unique())
    if not clusters:
        return []
    traces = []
    for cluster in clusters[:_MOST_CLUSTERS]:
        rows = thinned(frame[frame["cluster"] == cluster], _MOST_POINTS)
        look = Look(colour(int(cluster)))
        hover = "%{y:.3f}"
        x, y = rows["round"].to_numpy(), rows["granularity"].to_numpy()
        traces.append(line(x, y, f"cluster {cluster}", look, hovertemplate=hover))
    shapes, caption = [], "Spread within a cluster over its distance from the others: small means tight."
    for key, what in (("merge_below", "merge below"), ("split_above", "split above")):
        limit = frame[key].iloc[0]
        if np.isfinite(limit):
            shapes.append(_limit(limit))
            caption += f" The run would {what} {number(limit, 2)}."
    if len(clusters) > _MOST_CLUSTERS:
        caption += f" {_MOST_CLUSTERS} of {len(clusters)} clusters are shown."
    chart = figure(
        traces,
        "round",
        "granularity",
        shapes=shapes,
        showlegend=True,
        hovermode="closest" if len(clusters) > 8 else "x unified",
        yaxis={"rangemode": "tozero"},
    )
    return [Chart(f"granularity-{run_number}", chart, "Granularity of each cluster", caption, height=360)]


def _tuning(study: Study, run_number: int) -> list[Chart]:
    frame = thinned(tuning(study.runs[run_number]), _MOST_POINTS)
    if frame.empty:
        return []
    x = frame["round"].to_numpy()
    traces = [
        line(x, frame["before"].to_numpy(), "before tuning", Look(PALETTE[1], "dash"), hovertemplate="%{y}"),
        line(x, frame["after"].to_numpy(), "after tuning", Look(PALETTE[0]), hovertemplate="%{y}"),
    ]
    for trace in traces:
        trace["line"] = {**trace["line"], "shape": "hv"}
        trace["mode"] = "lines"
    chart = figure(
        traces,
        "round",
        "clusters",
        showlegend=True,
        hovermode="x unified",
        yaxis={"rangemode": "tozero", "dtick": None},
    )
    return [Chart(f"tuning-{run_number}", chart, "Number of clusters, before and after tuning", height=360)]


def _hopkins(study: Study, run_number: int) -> list[Chart]:
    frame = thinned(hopkins(study.runs[run_number], study.metric), _MOST_POINTS)
    if frame.empty:
        return []
    x = frame["round"].to_numpy()
    traces: list[dict[str, Any]] = [
        line(x, frame["hopkins"].to_numpy(), "Hopkins statistic", Look(PALETTE[0]), hovertemplate="%{y:.3f}"),
        line(
            x,
            frame["shared_layers"].to_numpy(),
            "shared layers",
            Look(PALETTE[1], "dot"),
            yaxis="y2",
            mode="lines",
            hovertemplate="%{y:g}",
        ),
    ]
    if frame["value"].notna().any():
        name = metric_name(study.metric)
        known = frame.dropna(subset=["value"])
        at, values = known["round"].to_numpy(), known["value"].to_numpy()
        traces.append(line(at, values, name, Look(PALETTE[2]), hovertemplate="%{y:.4f}"))
    threshold = float(frame["threshold"].iloc[0])
    chart = figure(
        traces,
        "round",
        "statistic",
        yaxis2=axis("layers", overlaying="y", side="right", showgrid=False, rangemode="tozero"),
        shapes=[_limit(threshold)] if np.isfinite(threshold) else [],
        margin={"l": 62, "r": 56, "t": 12, "b": 46},
        meta={"narrow_margin": {"l": 50, "r": 44}},
        showlegend=True,
        hovermode="x unified",
    )
    caption = f"Above {number(threshold, 2)} (dotted), predictions on public data call for clusters."
    return [Chart(f"hopkins-{run_number}", chart, "Hopkins statistic and shared layers", caption, height=360)]


def _limit(at: float) -> dict[str, Any]:
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": at, "y1": at}
    return {"type": "line", **ends, "line": {"color": "#55606e", "width": 1.2, "dash": "dot"}}
