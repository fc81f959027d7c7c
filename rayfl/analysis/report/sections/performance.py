"""Performance: curves over rounds, differences to the baseline seed by seed, and swept keys."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rayfl.analysis.colours import PALETTE
from rayfl.analysis.labels import NOT_COMPARED
from rayfl.analysis.report.blocks import Block, Chart, Figure, Paragraph, Row, Section
from rayfl.analysis.report.charts import DASHES, Look, band, figure, line
from rayfl.analysis.report.sections.overview import flat
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import plain
from rayfl.analysis.report.wording import metric_name
from rayfl.analysis.views.performance import curves, paired_differences, sensitivity

#: Maximum points of a curve; a screen cannot show more.
MOST_POINTS = 300
#: Up to this number, each setting has its own chart; more settings share one.
_MOST_CHARTS = 8
#: Maximum of swept keys that get a chart.
_MOST_KEYS = 6


def curve_section(study: Study) -> Section | None:
    """Return the metric over rounds, one chart per setting, and other curves that show how training went."""
    frame = curves(study.runs, study.metric)
    if frame.empty:
        return None
    seeds = int(frame["n"].max())
    spread = " Bands are the mean ± one standard deviation over seeds." if seeds > 1 else ""
    blocks: list[Block] = []
    for number, (setting, members) in enumerate(_by_setting(study)):
        name = metric_name(study.metric)
        chart = _curves(study, frame, members, name)
        where = f", {setting}" if setting else ""
        blocks.append(Chart(f"curves-{number}", chart, f"{name.capitalize()} over rounds{where}", height=430))
    others = [name for name in ("loss", "accuracy_worst10") if name != study.metric]
    small = []
    for other in others:
        values = curves(study.runs, other)
        if len(values):
            title = {"loss": "Test loss", "accuracy_worst10": "Accuracy of the worst 10 % of clients"}[other]
            chart = _curves(study, values, study.distinct, metric_name(other), showlegend=len(study.distinct) > 1)
            small.append(Chart(f"curves-{other}", chart, title, height=340))
    if small:
        blocks.append(Row(small))
    weighting = "Values are weighted by the number of test samples."
    hint = " Click a name in a legend to hide it, twice to see it alone." if len(study.distinct) > 1 else ""
    return Section("curves", "Curves", blocks, f"{weighting}{spread}{hint}")


def paired_section(study: Study) -> Section | None:
    """Return the difference of each run to the baseline's run of the same seed."""
    if study.baseline is None or study.final.empty:
        return None
    frame = paired_differences(study.runs, study.baseline, study.metric)
    all_pairs = len(frame)
    frame = frame[[pair in study.paired for pair in zip(frame["label"], frame["seed"], strict=True)]]
    if frame.empty:
        return None
    order = [name for name in study.distinct if name in set(frame["label"])]
    traces: list[dict[str, Any]] = []
    for label in order:
        rows = frame[frame["label"] == label]
        look = study.looks[label]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rows["difference"].to_numpy(),
                "y": [plain(label)] * len(rows),
                "name": plain(label),
                "marker": {"color": look.colour, "size": 9, "opacity": 0.75, "line": {"width": 1, "color": "#fff"}},
                "customdata": np.column_stack([rows["seed"], rows["value"], rows["baseline"]]).tolist(),
                "hovertemplate": "seed %{customdata[0]}: %{x:+.4f}<br>%{customdata[1]:.4f} against"
                " %{customdata[2]:.4f}<extra></extra>",
                "showlegend": False,
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [rows["difference"].mean()],
                "y": [plain(label)],
                "name": plain(label),
                "marker": {"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": look.colour}},
                "hovertemplate": f"mean of {len(rows)}: %{{x:+.4f}}<extra></extra>",
                "showlegend": False,
            }
        )
    name = metric_name(study.metric)
    better = "left" if study.lower else "right"
    chart = figure(
        traces,
        f"difference in {name}",
        yaxis={"autorange": "reversed", "type": "category", "title": {"text": ""}},
        xaxis={
            "zeroline": True,
            "zerolinecolor": "#7a8593",
            "zerolinewidth": 1.5,
            "tickformat": "+",
            "rangemode": "tozero",
        },
        showlegend=False,
        hovermode="closest",
    )
    lead = (
        f"Each dot is one seed: its {name} minus that of {study.baseline} with the same seed, at the last round that"
        f" both have evaluated. The bar is the mean. Dots to the {better} of zero are better than {study.baseline}."
    )
    blocks: list[Block] = [Chart("paired", chart, f"Difference to {study.baseline}", height=110 + 46 * len(order))]
    if len(frame) < all_pairs:
        left = f"{all_pairs - len(frame)} pairs are left out: the runs had other starts, see the notes on the table."
        blocks.append(Paragraph(left, "note"))
    return Section("paired", "Differences, seed by seed", blocks, lead)


def sensitivity_section(study: Study) -> Section | None:
    """Return the metric over each config key that was swept: a number with several values within one method."""
    keys = swept_keys(study)
    blocks: list[Block] = []
    for key in keys[:_MOST_KEYS]:
        frame = sensitivity(study.runs, key, study.metric)
        lines = [(label, rows) for label, rows in frame.groupby("label", sort=False) if rows["value"].nunique() > 1]
        if lines:
            blocks.append(_swept(study, key, lines))
    if len(keys) > _MOST_KEYS:
        blocks.append(Paragraph(f"Not drawn: {', '.join(keys[_MOST_KEYS:])}.", "note"))
    name = metric_name(study.metric)
    lead = f"The {name} at the last evaluated round; bars are one standard deviation over seeds."
    return Section("sensitivity", "Sensitivity", blocks, lead) if blocks else None


def swept_keys(study: Study) -> list[str]:
    """Return the config keys with numbers that differ between runs of one method."""
    found: list[str] = []
    for method in dict.fromkeys(run.config.method.name for run in study.runs):
        trees = [flat(run.config.to_tree()) for run in study.runs if run.config.method.name == method]
        for key in dict.fromkeys(key for tree in trees for key in tree):
            values = {tree[key] for tree in trees if isinstance(tree.get(key), int | float)}
            aside = any(key == other or key.startswith(f"{other}.") for other in (*NOT_COMPARED, "method.inherited"))
            if len(values) > 1 and not aside and key not in found:
                found.append(key)
    return found


def _swept(study: Study, key: str, lines: Sequence[tuple[Any, pd.DataFrame]]) -> Chart:
    traces = []
    for number, (label, rows) in enumerate(lines):
        rows = rows.assign(value=pd.to_numeric(rows["value"], errors="coerce")).dropna(subset=["value"])
        rows = rows.sort_values("value")
        look = Look(PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)])
        bars = {"type": "data", "array": rows["std"].to_numpy(), "color": look.colour, "thickness": 1.2, "width": 4}
        traces.append(
            line(
                rows["value"].to_numpy(),
                rows["mean"].to_numpy(),
                str(label),
                look,
                error_y=bars,
                customdata=rows["n"].to_numpy(),
                hovertemplate="%{x}: %{y:.4f} (n = %{customdata})",
            )
        )
    values = np.concatenate([np.asarray(trace["x"], float) for trace in traces])
    wide = values.min() > 0 and values.max() / values.min() >= 50
    chart = figure(
        traces,
        plain(key),
        metric_name(study.metric),
        xaxis={"type": "log" if wide else "linear"},
        showlegend=True,
        hovermode="closest",
    )
    return Chart(f"sensitivity-{key}", chart, f"{metric_name(study.metric).capitalize()} over {key}", height=380)


def _by_setting(study: Study) -> list[tuple[str, list[str]]]:
    """Return the labels of each setting; all together if there are many settings."""
    if len(study.settings) > _MOST_CHARTS:
        return [("", study.distinct)]
    return [
        (setting, list(dict.fromkeys(str(label) for label in study.labels if label.setting == setting)))
        for setting in study.settings
    ]


def _curves(
    study: Study, frame: pd.DataFrame, members: Sequence[str], y: str, showlegend: bool | None = None
) -> Figure:
    bands, lines = [], []
    for label in members:
        rows = thinned(frame[frame["label"] == label])
        if rows.empty:
            continue
        x, look = rows["round"].to_numpy(), study.looks[label]
        if (rows["n"] > 1).any():
            bands.append(band(x, rows["low"], rows["high"], label, look))
        hover = "%{y:.4f}" + (" ± %{customdata[0]:.4f} (n = %{customdata[1]})" if rows["n"].max() > 1 else "")
        spread = np.column_stack([rows["std"].fillna(0), rows["n"]]).tolist()
        lines.append(line(x, rows["mean"].to_numpy(), label, look, customdata=spread, hovertemplate=hover))
    many = len(lines) > 10
    return figure(
        [*bands, *lines],
        "round",
        y,
        showlegend=len(study.distinct) > 1 if showlegend is None else showlegend,
        hovermode="closest" if many else "x unified",
    )


def thinned(rows: pd.DataFrame, most: int = MOST_POINTS) -> pd.DataFrame:
    """Return the rows; if there are too many, evenly spaced ones including the first and the last."""
    if len(rows) <= most:
        return rows
    return rows.iloc[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]
