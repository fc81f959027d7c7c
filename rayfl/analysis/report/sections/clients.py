"""Clients: how the metric is spread over clients, and the clients with the worst values."""

import numpy as np

from rayfl.analysis.report.blocks import Block, Cell, Chart, DataTable, Folded, PerRun, Section
from rayfl.analysis.report.charts import figure, line
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, count, metric_name, number
from rayfl.analysis.views.clients import client_distribution, worst_clients

#: Points of a distribution function: every client if there are few, quantiles if there are many.
MOST_STEPS = 400
_WORST = 10


def clients_section(study: Study) -> Section | None:
    """Return the distribution function of the metric over clients, spread measures, and the worst clients."""
    if not any(study.metric in run.clients and run.clients[study.metric].notna().any() for run in study.runs):
        return None
    frame = client_distribution(study.runs, study.metric)
    rows: list[list[Cell | str]] = []
    traces, sampled = [], False
    for label in study.distinct:
        of = frame[frame["label"] == label]
        if of.empty:
            continue
        values = np.sort(of["value"].to_numpy(float))
        share = np.arange(1, len(values) + 1) / len(values)
        if len(values) > MOST_STEPS:
            sampled = True
            at = np.unique(np.linspace(0, len(values) - 1, MOST_STEPS).round().astype(int))
            values, share = values[at], share[at]
        look = study.looks[label]
        shape = {"color": look.colour, "width": 2, "dash": look.dash, "shape": "hv"}
        hover = "%{y:.0%} of clients have at most %{x:.4f}"
        traces.append(line(values, share, label, look, mode="lines", line=shape, hovertemplate=hover))
        spread = of["value"].astype(float)
        quantiles = spread.quantile([0.1, 0.5, 0.9])
        rows.append(
            [
                Cell(cut(label), colour=look.colour),
                f"{len(of):,}",
                number(spread.mean()),
                number(spread.std()),
                number(spread.min()),
                *[number(value) for value in quantiles],
                number(spread.max()),
            ]
        )
    if not traces:
        return None
    name = metric_name(study.metric)
    chart = figure(
        traces,
        name,
        "share of clients",
        yaxis={"range": [0, 1.02], "tickformat": ".0%"},
        showlegend=len(traces) > 1,
        hovermode="closest",
    )
    caption = "A curve further right is better." if not study.lower else "A curve further left is better."
    if sampled:
        caption += f" Of many clients, {MOST_STEPS} evenly spaced quantiles are drawn; the table counts all."
    columns = ["configuration", "clients", "mean", "std", "worst" if not study.lower else "least", "10 %", "median"]
    columns += ["90 %", "best" if not study.lower else "greatest"]
    title = f"Share of clients with at most this {name}"
    blocks: list[Block] = [
        Chart("ecdf", chart, title, caption, height=400),
        DataTable(columns, rows, frozenset(range(1, len(columns))), name="spread"),
        _worst(study),
    ]
    lead = (
        f"Each client's {name} on its own test samples at the last evaluated round. Seeds are pooled: a client counts"
        " once per seed."
    )
    return Section("clients", "For whom: clients", blocks, lead)


def _worst(study: Study) -> Folded:
    variants: dict[int, list[Block]] = {}
    for run_number in study.detailed:
        worst = worst_clients([study.runs[run_number]], study.metric, _WORST)
        if worst.empty:
            continue
        columns = [
            "client",
            metric_name(study.metric),
            "cluster",
            "planted cluster",
            "training samples",
            "test samples",
        ]
        rows = [
            [
                str(row.client),
                number(float(str(row.value))),
                _label(row.cluster),
                _label(row.true_cluster),
                f"{row.n_train:,}",
                f"{row.n_test:,}",
            ]
            for row in worst.itertuples()
        ]
        variants[run_number] = [DataTable(columns, rows, frozenset(range(len(columns))))]
    return Folded(f"The {count(_WORST, 'client')} that are worst off, run by run", [PerRun(variants)])


def _label(cluster: object) -> str:
    return NOTHING if cluster is None or str(cluster) in ("<NA>", "nan") else str(cluster)
