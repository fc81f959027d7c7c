"""The table: methods over seeds with differences to the baseline, as `rayfl compare` has it, and its notes."""

import math
from typing import Any

import pandas as pd

from rayfl.analysis.report.blocks import Block, Cell, DataTable, Paragraph, Section
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, metric_name, number, plus_minus, signed

#: Further columns, if runs have them: name in the comparison, heading, explanation, digits.
_BESIDE = (
    ("worst10", "worst 10 %", "mean of the tenth of clients that is worst off", 3),
    ("client_std", "spread", "standard deviation over clients", 3),
    ("worse_than_baseline", "worse off", "share of clients that are worse off than under the baseline", 3),
    ("worse_than_local", "worse than alone", "share of clients that would do better alone (method local)", 3),
    ("clusters", "clusters", "number of clusters", 1),
    ("ari", "ARI", "adjusted Rand index against the planted clusters: 1 is perfect, 0 is chance", 2),
)
#: Maximum of notes that are shown; for many broken runs, the first are enough.
_MOST_NOTES = 12


def table_section(study: Study) -> Section | None:
    """Return a table per setting, best method first, with its notes."""
    comparison = study.comparison
    if comparison is None:
        return None
    frame = comparison.summary
    blocks: list[Block] = []
    for place, setting in enumerate(comparison.settings):
        caption = setting if len(comparison.settings) > 1 else ""
        blocks.append(_table(study, frame[frame["setting"] == setting], caption, place))
    if frame["not_worse"].any():
        blocks.append(Paragraph("≈: a paired test at 5 % does not find it worse than the best.", "note"))
    for note in comparison.notes[:_MOST_NOTES]:
        blocks.append(Paragraph(f"{note[0].upper()}{note[1:]}.", "note"))
    if len(comparison.notes) > _MOST_NOTES:
        blocks.append(Paragraph(f"`rayfl compare` has {len(comparison.notes) - _MOST_NOTES} more notes.", "note"))
    lead = "Mean ± standard deviation over seeds, at the last evaluated round."
    if (frame["pairs"] > 0).any():
        lead += (
            f" Differences are to {comparison.baseline}, between runs with the same seed, data and initial model, with"
            " a 95 % bootstrap interval."
        )
    return Section("table", "Results", blocks, lead)


def _table(study: Study, rows: pd.DataFrame, caption: str, place: int) -> DataTable:
    rows = rows.sort_values("mean", ascending=study.lower, kind="stable")
    beside = [entry for entry in _BESIDE if rows[entry[0]].notna().any()]
    paired = bool((rows["pairs"] > 0).any())
    columns = ["method", metric_name(study.metric), "seeds"]
    columns += [f"against {study.comparison.baseline}"] if paired and study.comparison is not None else []
    hints = {len(columns) + n: hint for n, (_, _, hint, _) in enumerate(beside)}
    columns += [heading for _, heading, _, _ in beside]
    cells = []
    for row in rows.to_dict("records"):
        line: list[Cell | str] = [
            Cell(cut(str(row["method"])), colour=study.colour_of(str(row["setting"]), str(row["method"]))),
            Cell(plus_minus(row["mean"], row["std"]), best=bool(row["best"]), mark="≈" if row["not_worse"] else ""),
            str(row["n"]),
        ]
        if paired:
            line.append(_difference(row))
        line += [number(row[key], digits) for key, _, _, digits in beside]
        cells.append(line)
    numeric = frozenset(range(1, len(columns)))
    return DataTable(columns, cells, numeric, caption, hints, f"results-{place}")


def _difference(row: dict[Any, Any]) -> Cell:
    if not row["pairs"]:
        return Cell(NOTHING)
    interval = "" if math.isnan(row["low"]) else f"({signed(row['low'], 3)} to {signed(row['high'], 3)})"
    test = "" if math.isnan(row["p"]) else f"; sign-flip test: p = {row['p']:.3g}"
    pairs = f"{row['pairs']} pairs of runs" if row["pairs"] > 1 else "one pair of runs"
    return Cell(signed(row["difference"]), mark=interval, hint=f"{pairs}{test}")
