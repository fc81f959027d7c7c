"""The table: each configuration's metric over seeds, with what else matters at the last evaluated round."""

import pandas as pd

from rayfl.analysis.metrics import by_round
from rayfl.analysis.report.blocks import Block, Cell, DataTable, Section
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, metric_name, plus_minus

#: Columns beside the metric, where runs have them: name in `rounds`, heading, explanation.
_BESIDE = (
    ("macro_f1", "macro-F1", "mean over classes, weighted by test size over clients"),
    ("accuracy_worst10", "worst 10 %", "mean accuracy of the tenth of clients that is worst off"),
    ("accuracy_std", "spread", "standard deviation of the accuracy over clients"),
    ("clusters", "clusters", "number of clusters"),
    ("ari", "ARI", "adjusted Rand index against the planted clusters: 1 is perfect, 0 is chance"),
)


def table_section(study: Study) -> Section | None:
    """Return a table per setting, best configuration first."""
    if study.final.empty:
        return None
    blocks: list[Block] = [_table(study, setting, number) for number, setting in enumerate(study.best)]
    name = metric_name(study.metric)
    lead = f"Mean ± standard deviation over seeds, at the last evaluated round; the best {name} comes first."
    return Section("table", "Results", blocks, lead)


def _table(study: Study, setting: str, number: int) -> DataTable:
    here = study.final[study.final["setting"] == setting]
    means = here.groupby("label", sort=False)["value"].mean().sort_values(ascending=study.lower, kind="stable")
    beside = [(key, heading, hint) for key, heading, hint in _BESIDE if key != study.metric and _has(study, here, key)]
    rows = []
    for label in means.index:
        of = here[here["label"] == label]
        cells: list[Cell | str] = [Cell(cut(str(label)), colour=study.looks[str(label)].colour)]
        cells.append(Cell(plus_minus(of["value"].mean(), of["value"].std()), best=label == study.best[setting]))
        cells.append(str(len(of)))
        for key, _, _ in beside:
            values = _last(study, of, key)
            cells.append(NOTHING if values.empty else plus_minus(values.mean(), values.std()))
        rows.append(cells)
    columns = ["configuration", metric_name(study.metric), "seeds", *[heading for _, heading, _ in beside]]
    hints = {place: hint for place, (_, _, hint) in enumerate(beside, start=3)}
    return DataTable(columns, rows, frozenset(range(1, len(columns))), setting, hints, f"results-{number}")


def _has(study: Study, rows: pd.DataFrame, key: str) -> bool:
    return not _last(study, rows, key).empty


def _last(study: Study, rows: pd.DataFrame, key: str) -> pd.Series:
    values = {number: by_round(study.runs[number], key) for number in rows["run"]}
    return pd.Series({number: of.iloc[-1] for number, of in values.items() if len(of)}, dtype=float)
