"""Drift: how changes of the planted clusters affected each run, and when its metrics were back."""

import math

from rayfl.analysis.drift import TOLERANCE, WINDOW, drifts
from rayfl.analysis.metrics import by_round
from rayfl.analysis.report.blocks import Block, DataTable, Paragraph, Section
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.wording import NOTHING, metric_name, number

#: Drifts that are listed.
_MOST_ROWS = 200


def drift_section(study: Study) -> Section | None:
    """Return a table of all drifts; None if no client of any run changed its planted cluster."""
    rows: list[list[str]] = []
    total = 0
    for run_number, run in enumerate(study.runs):
        for metric in dict.fromkeys([study.metric, "ari"]):
            if by_round(run, metric).empty:
                continue
            found = drifts(run, metric)
            total += len(found)
            for row in found.head(max(0, _MOST_ROWS - len(rows))).to_dict("records"):
                first, last, took = row["round"], row["until"], row["rounds_to_recovery"]
                when = str(first) if first == last else f"{first} to {last}"
                values = [number(row["before"]), number(row["worst"]), NOTHING if math.isnan(took) else f"{took:.0f}"]
                rows.append([study.run_names[run_number], when, str(row["changed"]), metric_name(metric), *values])
    if not rows:
        return None
    columns = ["run", "rounds of the change", "clients", "metric", "before", "worst", "rounds to recovery"]
    blocks: list[Block] = [DataTable(columns, rows, frozenset({1, 2, 4, 5, 6}), name="drift")]
    if total > len(rows):
        blocks.append(
            Paragraph(f"{total - len(rows):,} more are left out; `rayfl.analysis.views.drifts` has all.", "note")
        )
    lead = (
        f"A metric is back when it is within {TOLERANCE:g} of its mean over the last {WINDOW} evaluated rounds before"
        " the change. Changes that come before that count as one drift. A dash: it was not back by the end."
    )
    return Section("drift", "Drift", blocks, lead)
