"""Costs: the metric against traffic and time, and the cost to reach a target."""

import numpy as np
import pandas as pd

from rayfl.analysis.report.blocks import Block, Cell, Chart, DataTable, Paragraph, Row, Section
from rayfl.analysis.report.charts import figure, line
from rayfl.analysis.report.sections.performance import thinned
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, listed, metric_name, number, quantity
from rayfl.analysis.views.costs import cost, time_to_target


def cost_section(study: Study) -> Section | None:
    """Return the metric against cumulative traffic and time, and a table of the cost to reach the target."""
    frame = cost(study.runs, study.metric)
    if frame.empty:
        return None
    means = frame.groupby(["label", "round"], sort=False)[["value", "bytes", "seconds"]].mean().reset_index()
    name = metric_name(study.metric)
    axes = (
        ("bytes", 1e6, "MB sent and received by all clients", f"{name.capitalize()} against traffic"),
        ("seconds", 1.0, "seconds of training, server and evaluation", f"{name.capitalize()} against time"),
    )
    charts = []
    for column, unit, title, heading in axes:
        traces, drawn = [], set()
        for label in study.distinct:
            rows = thinned(means[means["label"] == label])
            if rows.empty or not rows[column].any():
                continue
            drawn.add(label)
            hover = f"round %{{customdata}}: %{{y:.4f}} after %{{x:.4g}} {'MB' if column == 'bytes' else 's'}"
            x, y, look = rows[column].to_numpy() / unit, rows["value"].to_numpy(), study.looks[label]
            traces.append(line(x, y, label, look, customdata=rows["round"].to_numpy(), hovertemplate=hover))
        if traces:
            spread = np.concatenate([trace["x"] for trace in traces])
            wide = spread.min() > 0 and max(t["x"][-1] for t in traces) / min(t["x"][-1] for t in traces) > 20
            kind = {"type": "log"} if wide else {"rangemode": "tozero"}
            chart = figure(traces, title, name, xaxis=kind, showlegend=len(traces) > 1, hovermode="closest")
            silent = [label for label in dict.fromkeys(means["label"]) if label not in drawn]
            caption = f"Not drawn, since it sends nothing: {listed(silent)}." if silent else ""
            charts.append(Chart(f"cost-{column}", chart, heading, caption, height=370))
    blocks: list[Block] = [Row(charts)] if charts else []
    blocks += _targets(study)
    lead = (
        "Means over seeds. Traffic is what clients would have sent and received in a real deployment; seconds are those"
        " of the machine that simulated it, so compare them only between runs on the same machine."
    )
    return Section("cost", "At what cost", blocks, lead)


def _targets(study: Study) -> list[Block]:
    target = study.target if study.target is not None else usual_target(study)
    if target is None:
        return []
    frame = time_to_target(study.runs, target, study.metric)
    rows: list[list[Cell | str]] = []
    for label in study.distinct:
        of = frame[frame["label"] == label]
        if of.empty:
            continue
        there = of[of["reached"]]
        means = there[["round", "bytes", "seconds"]].mean() if len(there) else None
        shown = (
            [NOTHING] * 3
            if means is None
            else [f"{means['round']:.1f}", quantity(means["bytes"]), _time(means["seconds"])]
        )
        rows.append([Cell(cut(label), colour=study.looks[label].colour), f"{len(there)} of {len(of)}", *shown])
    side = "at most" if study.lower else "at least"
    name = metric_name(study.metric)
    why = "" if study.target is not None else " The target is nine tenths of the best mean: choose another by --target."
    if study.target is None and study.lower:
        why = " The target is 1.1 times the best mean: choose another by --target."
    text = f"What it took to reach {name} {number(target)} ({side}): means over the runs that did.{why}"
    columns = ["configuration", "runs that did", "rounds", "traffic", "time"]
    return [Paragraph(text), DataTable(columns, rows, frozenset(range(1, 5)), name="target")]


def usual_target(study: Study) -> float | None:
    """Return a target that most good runs reach: near the best mean at the end."""
    if study.final.empty:
        return None
    means: pd.Series = study.final.groupby("label")["value"].mean()
    best = float(means.min() if study.lower else means.max())
    if best <= 0:
        return None
    return float(f"{best * (1.1 if study.lower else 0.9):.2g}")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
