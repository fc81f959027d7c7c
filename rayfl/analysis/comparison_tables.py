"""A comparison as tables: for a terminal, as Markdown, as LaTeX with booktabs, and as csv for other programs."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rayfl.analysis.comparison import COSTS, Comparison
from rayfl.analysis.measures import is_share
from rayfl.analysis.papers import PaperTable
from rayfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["text", "markdown", "latex", "csv"]
#: What a file's name says of its format.
ENDINGS: dict[str, Format] = {".txt": "text", ".md": "markdown", ".tex": "latex", ".csv": "csv"}
_AT = {
    "last": "after the last evaluated round",
    "last3": "mean of the last three evaluated rounds",
    "best-validation": "in the round with the best validation value",
}
#: Wider than any table, so that what goes into a file is not wrapped.
_NO_LIMIT = 10_000


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is the best of its column or not significantly worse than the best."""

    text: str
    best: bool = False
    not_worse: bool = False


@dataclass(frozen=True)
class Table:
    """A table of texts; columns after the first `names` are numbers."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    names: int = 1


def check_format(name: str) -> None:
    """Refuse a format that there is not."""
    if name not in get_args(Format):
        raise InputError(f"format={name} is not allowed: use one of {', '.join(get_args(Format))}")


def render(comparison: Comparison, form: Format = "text", paper: PaperTable | None = None) -> str:
    """Return the comparison as text in this format, with its notes; csv has no room for notes."""
    check_format(form)
    if form == "csv":
        return (comparison.summary if paper is None else paper.rows).to_csv(index=False)
    if form == "text":
        console = Console(file=io.StringIO(), width=_NO_LIMIT, highlight=False)
        show(comparison, paper, console)
        return console.file.getvalue()  # type: ignore[attr-defined]
    tables, notes = tables_of(comparison, paper), all_notes(comparison, paper)
    return (_markdown if form == "markdown" else _latex)(tables, [*_legend(tables, "bold"), *notes])


def show(comparison: Comparison, paper: PaperTable | None, console: Console) -> None:
    """Print the comparison to a terminal."""
    tables = tables_of(comparison, paper)
    for table in tables:
        rich = RichTable()
        for number, name in enumerate(table.header):
            rich.add_column(escape(name), justify="left" if number < table.names else "right")
        for row in table.rows:
            rich.add_row(*[_rich(cell) for cell in row])
        # Not the table's own title, which would be wrapped to its width.
        console.print(table.title, style="bold", markup=False, soft_wrap=True)
        console.print(rich)
    for note in [*_legend(tables, "bold and *"), *all_notes(comparison, paper)]:
        console.print(f"- {note}", markup=False, soft_wrap=True)


def all_notes(comparison: Comparison, paper: PaperTable | None) -> list[str]:
    """Return what stands below the tables."""
    return comparison.notes + ([] if paper is None else paper.notes)


def tables_of(comparison: Comparison, paper: PaperTable | None = None) -> list[Table]:
    """Return the tables: the metric, differences to the baseline, clients and clusters, cost, the paper's values."""
    found = [_values(comparison), _differences(comparison), _details(comparison), _costs(comparison)]
    found += [] if paper is None else [_paper(comparison, paper)]
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
    title = (
        f"{_named(comparison.metric, unit=False)}: paired difference to {comparison.baseline}{points}, with 95 %"
        " bootstrap interval, p-value of a sign-flip test, and pairs"
    )

    def cell(row: Any) -> Cell:
        if not row.pairs:
            return Cell("not paired")
        number = _number(comparison.metric)
        interval = "" if math.isnan(row.low) else f" [{number(row.low)}, {number(row.high)}]"
        return Cell(f"{_signed(number, row.difference)}{interval}, p={row.p:.3f}, n={row.pairs}")

    return _grid(comparison, title, frame, cell)


def _details(comparison: Comparison) -> Table | None:
    number, base = _number(comparison.metric), comparison.baseline
    better = {
        "worst10": ("worst 10 % of clients", number),
        "client_std": ("std over clients", number),
        "worse_than_baseline": (f"clients worse off than with {base}", _percent),
        "worse_than_local": ("clients worse off than alone", _percent),
        "ari": ("ARI", _fixed(3)),
        "misclustering": ("misclustered", _fixed(3)),
        "clusters": ("K", _short),
    }
    title = f"clients ({_named(comparison.metric)}) and clusters; means over seeds"
    return _long(comparison, title, {key: found for key, found in better.items() if _any(comparison.summary, key)})


def _costs(comparison: Comparison) -> Table | None:
    if comparison.target is None:
        return None
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "reached": ("seeds that reach it", _short),
        "rounds_to_target": ("rounds", _short),
        "mb_to_target": ("MB", _short),
        "seconds_to_target": ("seconds", _short),
    }
    target = _number(comparison.metric)(comparison.target)
    title = f"cost to reach {_named(comparison.metric)} {target}; means over the seeds that reach it"
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
    """Lay out methods as rows and settings as columns."""
    cells = {(row.setting, row.method): cell(row) for row in _rows(frame)}
    methods = list(dict.fromkeys(frame["method"]))
    first = [comparison.baseline] if comparison.baseline in methods else []
    methods = first + [method for method in methods if method not in first]
    settings = comparison.settings
    rows = [[Cell(method), *[cells.get((setting, method), Cell("-")) for setting in settings]] for method in methods]
    return Table(title, ["method", *settings], rows)


def _long(comparison: Comparison, title: str, columns: dict[str, tuple[str, Callable[[float], str]]]) -> Table | None:
    """Lay out a row per setting and method."""
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


def _any(frame: "pd.DataFrame", key: str) -> bool:
    return bool(frame[key].notna().any())


# -- numbers ---------------------------------------------------------------------------------------------------------


def _named(metric: str, unit: bool = True) -> str:
    name = metric.replace("macro_f1", "macro-F1")
    return f"{name}, %" if unit and is_share(metric) else name


def _number(metric: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.2f}") if is_share(metric) else _short


def _fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def _short(value: float) -> str:
    return f"{value:.4g}"


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


# -- formats ---------------------------------------------------------------------------------------------------------


def _legend(tables: list[Table], best: str) -> list[str]:
    cells = [cell for table in tables for row in table.rows for cell in row]
    words = [f"{best}: the best of its column"] if any(cell.best for cell in cells) else []
    if any(cell.not_worse for cell in cells):
        words.append("†: not significantly worse than the best (paired sign-flip test at 5 %)")
    return words


def _rich(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        return f"[bold]{text} *[/bold]"
    return f"{text} †" if cell.not_worse else text


def _markdown(tables: list[Table], notes: list[str]) -> str:
    def safe(text: str) -> str:
        return re.sub(r"[|*<>`\\]", r"\\\g<0>", text)

    def shown(cell: Cell) -> str:
        text = safe(cell.text)
        return f"**{text}**" if cell.best else f"{text} †" if cell.not_worse else text

    parts = []
    for table in tables:
        sides = [":--" if number < table.names else "--:" for number in range(len(table.header))]
        rows = [list(map(safe, table.header)), sides, *[list(map(shown, row)) for row in table.rows]]
        parts.append("\n".join([f"**{safe(table.title)}**", "", *[f"| {' | '.join(row)} |" for row in rows]]))
    below = [f"- {safe(note)}" for note in notes]
    return "\n\n".join([*parts, *(["\n".join(below)] if below else [])]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "†": r"$^{\dagger}$",
}


def _escaped(text: str) -> str:
    """Escape what LaTeX takes for commands; letters that its plain fonts lack become question marks."""
    safe = "".join(_LATEX.get(c, c if c.isascii() or c in _LATIN else "?") for c in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", safe)


_LATIN = "".join(chr(code) for code in range(0xC0, 0x100) if code not in (0xD0, 0xDE, 0xF0, 0xFE))


def _latex(tables: list[Table], notes: list[str]) -> str:
    def shown(cell: Cell) -> str:
        text = _escaped(cell.text)
        return rf"\textbf{{{text}}}" if cell.best else rf"{text}$^{{\dagger}}$" if cell.not_worse else text

    parts = ["% Needs \\usepackage{booktabs}."]
    for table in tables:
        columns = "l" * table.names + "r" * (len(table.header) - table.names)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.title)}.}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(_escaped, table.header)) + r" \\"]
        lines += [r"\midrule", *[" & ".join(map(shown, row)) + r" \\" for row in table.rows]]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]))
    parts += ["\n".join(f"% {note}" for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"
