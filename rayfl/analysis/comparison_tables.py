"""The tables of a comparison: values, differences, clients, clusters, cost, and the values printed in papers."""

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.console import Console

from rayfl.analysis.comparison import COSTS, Comparison
from rayfl.analysis.measures import is_share
from rayfl.analysis.papers import PaperTable
from rayfl.analysis.table_formats import Cell, Table, latex, markdown, print_tables
from rayfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["text", "markdown", "latex", "csv"]
#: The format by the ending of a file's name.
ENDINGS: dict[str, Format] = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv"}
_AT = {
    "last": "after the last evaluated round",
    "last3": "mean of the last three evaluated rounds",
    "best-validation": "in the round with the best validation value",
}
#: Wider than any table, so that text written to a file is not wrapped.
_NO_LIMIT = 10_000


def check_format(name: str) -> None:
    """Refuse a format that does not exist."""
    if name not in get_args(Format):
        raise InputError(f"format={name} is not allowed: use one of {', '.join(get_args(Format))}")


def render(comparison: Comparison, form: Format = "text", paper: PaperTable | None = None) -> str:
    """Return the comparison as text in this format, with its notes; csv has no place for notes."""
    check_format(form)
    if form == "csv":
        return (comparison.summary if paper is None else paper.rows).to_csv(index=False)
    if form == "text":
        console = Console(file=io.StringIO(), width=_NO_LIMIT, highlight=False)
        show(comparison, paper, console)
        return console.file.getvalue()  # type: ignore[attr-defined]
    tables, notes = tables_of(comparison, paper), all_notes(comparison, paper)
    return (markdown if form == "markdown" else latex)(tables, notes)


def show(comparison: Comparison, paper: PaperTable | None, console: Console) -> None:
    """Print the comparison to a terminal."""
    print_tables(tables_of(comparison, paper), all_notes(comparison, paper), console)


def all_notes(comparison: Comparison, paper: PaperTable | None) -> list[str]:
    """Return the notes below the tables."""
    return comparison.notes + ([] if paper is None else paper.notes)


def tables_of(comparison: Comparison, paper: PaperTable | None = None) -> list[Table]:
    """Return the tables: the metric, differences to a baseline, clients, clusters, drift, cost, the paper's values."""
    found = [_values(comparison), _differences(comparison), _clients(comparison), _clusters(comparison)]
    found += [_recovery(comparison), _costs(comparison), None if paper is None else _paper(comparison, paper)]
    return [table for table in found if table is not None]


# -- the tables ------------------------------------------------------------------------------------------------------


def _values(comparison: Comparison) -> Table:
    frame, metric = comparison.summary, comparison.metric
    counts = set(frame["n"])
    n = counts.pop() if len(counts) == 1 else None
    what = f"{_named(metric)}, {_AT[comparison.at]}"
    over = "n in brackets" if n is None else "one seed" if n == 1 else f"{n} seeds"
    title = f"{what}; {over}" if n == 1 else f"{what}; mean ± std over {'seeds, ' if n is None else ''}{over}"

    def cell(row: Any) -> Cell:
        text = _spread(row.mean, row.std, metric) + ("" if n is not None else f" ({row.n})")
        return Cell(text, row.best, row.not_worse)

    return _grid(comparison, title, frame, cell)


def _differences(comparison: Comparison) -> Table | None:
    frame = comparison.summary
    if comparison.baseline is None or not (frame["pairs"] > 0).any():
        return None
    frame = frame[frame["method"] != comparison.baseline]
    points = ", in percentage points" if is_share(comparison.metric) else ""
    counts = set(frame["pairs"])
    n = counts.pop() if len(counts) == 1 else None
    title = (
        f"{_named(comparison.metric, unit=False)}: paired difference to {comparison.baseline}{points}, with 95 %"
        f" bootstrap interval, and p-value of a sign-flip test; {'pairs in brackets' if n is None else _pairs(n)}"
    )

    def cell(row: Any) -> Cell:
        if not row.pairs:
            return Cell("not paired")
        number = _number(comparison.metric)
        interval = "" if math.isnan(row.low) else f" [{number(row.low)}, {number(row.high)}]"
        pairs = f" ({row.pairs})" if n is None else ""
        return Cell(f"{_signed(number, row.difference)}{interval}, p={row.p:.3f}{pairs}")

    return _grid(comparison, title, frame, cell)


def _clients(comparison: Comparison) -> Table | None:
    number, base = _number(comparison.metric), comparison.baseline
    columns = {
        "worst10": ("worst 10 %", number),
        "client_std": ("std over clients", number),
        "worse_than_baseline": (f"worse than with {base}", _percent),
        "worse_than_local": ("worse than alone", _percent),
    }
    title = f"clients: {_named(comparison.metric)}, and the share of clients that are worse off; means over seeds"
    return _long(comparison, title, columns)


def _clusters(comparison: Comparison) -> Table | None:
    columns = {
        "ari": ("ARI", _fixed(3)),
        "misclustering": ("misclustered", _fixed(3)),
        "clusters": ("K", _rough),
    }
    return _long(comparison, "found clusters against the planted ones, and their number; means over seeds", columns)


def _recovery(comparison: Comparison) -> Table | None:
    name = comparison.metric.replace("macro_f1", "macro-F1")
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "recovered": (f"{name} is back", _percent),
        "rounds_to_recovery": ("rounds until then", _rough),
        "ari_recovered": ("ARI is back", _percent),
        "ari_rounds_to_recovery": ("rounds until ARI is", _rough),
    }
    return _long(
        comparison, "after clients change cluster: share of drifts that are made up for; means over seeds", columns
    )


def _costs(comparison: Comparison) -> Table | None:
    if comparison.target is None:
        return None
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "reached": ("seeds that reach it", _rough),
        "rounds_to_target": ("rounds", _rough),
        "mb_to_target": ("MB", _rough),
        "seconds_to_target": ("seconds", _rough),
    }
    target = _number(comparison.metric)(comparison.target)
    unit = " %" if is_share(comparison.metric) else ""
    name = _named(comparison.metric, unit=False)
    title = f"cost to reach {name} {target}{unit}; means over the seeds that reach it"
    assert set(COSTS) <= set(columns)
    return _long(comparison, title, columns)


def _paper(comparison: Comparison, paper: PaperTable) -> Table | None:
    if paper.rows.empty:
        return None
    header = ["method", "data", "setting", "K", "ours", "n", "printed", "difference"]
    unit = ", %" if is_share(comparison.metric) else ""
    rows = [
        [
            *[Cell(text) for text in (row.method, row.dataset, row.printed_setting, row.K)],
            Cell(_plain_spread(row.mean, row.std)),
            Cell(str(row.n)),
            Cell(_plain_spread(row.printed_mean, row.printed_std)),
            Cell(_signed(_fixed(2), row.difference)),
        ]
        for row in _rows(paper.rows)
    ]
    return Table(f"{comparison.metric}{unit}: our runs beside table {paper.name}", header, rows, names=4)


def _grid(comparison: Comparison, title: str, frame: "pd.DataFrame", cell: Callable[[Any], Cell]) -> Table:
    """Return a table with methods as rows and settings as columns."""
    cells = {(row.setting, row.method): cell(row) for row in _rows(frame)}
    methods = list(dict.fromkeys(frame["method"]))
    first = [comparison.baseline] if comparison.baseline in methods else []
    methods = first + [method for method in methods if method not in first]
    settings = comparison.settings
    rows = [[Cell(method), *[cells.get((setting, method), Cell("-")) for setting in settings]] for method in methods]
    return Table(title, ["method", *settings], rows)


def _long(comparison: Comparison, title: str, columns: dict[str, tuple[str, Callable[[float], str]]]) -> Table | None:
    """Return a table with a row per setting and method; columns without any value are left out."""
    columns = {key: shown for key, shown in columns.items() if comparison.summary[key].notna().any()}
    if not columns:
        return None
    several = len(comparison.settings) > 1
    rows = []
    for row in _rows(comparison.summary):
        names = [Cell(row.setting)] if several else []
        figures = [Cell("-" if math.isnan(v := getattr(row, key)) else show(v)) for key, (_, show) in columns.items()]
        rows.append([*names, Cell(row.method), *figures])
    header = [*(["setting"] if several else []), "method", *[name for name, _ in columns.values()]]
    return Table(title, header, rows, names=2 if several else 1)


def _rows(frame: "pd.DataFrame") -> Sequence[Any]:
    return list(frame.itertuples(index=False))


# -- numbers ---------------------------------------------------------------------------------------------------------


def _named(metric: str, unit: bool = True) -> str:
    name = metric.replace("macro_f1", "macro-F1")
    return f"{name}, %" if unit and is_share(metric) else name


def _number(metric: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.2f}") if is_share(metric) else _short


def _pairs(n: int) -> str:
    return "1 pair" if n == 1 else f"{n} pairs"


def _fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _rough(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _signed(number: Callable[[float], str], value: float) -> str:
    text = number(value)
    return text if text.startswith("-") else f"+{text}"


def _spread(mean: float, std: float, metric: str) -> str:
    number = _number(metric)
    return number(mean) if math.isnan(std) else f"{number(mean)} ± {number(std)}"


def _plain_spread(mean: float, std: float) -> str:
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} ± {std:.2f}"
