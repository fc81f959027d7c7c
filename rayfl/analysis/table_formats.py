"""Prints tables of text to a terminal, as Markdown, and as LaTeX with booktabs; knows nothing of their content."""

import re
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is the best of its column or not significantly worse than the best."""

    text: str
    best: bool = False
    not_worse: bool = False


@dataclass(frozen=True)
class Table:
    """A table; columns after the first `names` are numbers. `-` stands for a missing value."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    names: int = 1


def print_tables(tables: list[Table], notes: list[str], console: Console) -> None:
    """Print to a terminal, or to a file of plain text: the best is bold and has a star."""
    for position, table in enumerate(tables):
        rich = RichTable()
        for number, name in enumerate(table.header):
            rich.add_column(escape(name), justify="left" if number < table.names else "right")
        for row in table.rows:
            rich.add_row(*[_rich(cell) for cell in row])
        # Print the title here: rich would wrap the table's own title to the width of the table.
        console.print(("\n" if position else "") + table.title, style="bold", markup=False, soft_wrap=True)
        console.print(rich)
    for note in [*_legend(tables, "bold and *"), *notes]:
        console.print(f"- {note}", markup=False, soft_wrap=True)


def markdown(tables: list[Table], notes: list[str]) -> str:
    """Return the tables one after the other, with the notes as a list below them."""

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
    below = [f"- {safe(note)}" for note in [*_legend(tables, "bold"), *notes]]
    return "\n\n".join([*parts, *(["\n".join(below)] if below else [])]) + "\n"


def latex(tables: list[Table], notes: list[str]) -> str:
    """Return a table environment for each table; notes become comments, since they name folders of this machine."""
    parts = ["% Needs \\usepackage{booktabs}.", *map(_latex_table, tables)]
    below = [*_legend(tables, "bold"), *notes]
    parts += ["\n".join(f"% {note}" for note in below)] if below else []
    return "\n\n".join(parts) + "\n"


def _latex_table(table: Table) -> str:
    def shown(cell: Cell) -> str:
        text = "--" if cell.text == "-" else _escaped(cell.text)
        return rf"\textbf{{{text}}}" if cell.best else rf"{text}$^{{\dagger}}$" if cell.not_worse else text

    columns = "l" * table.names + "r" * (len(table.header) - table.names)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.title)}.}}", r"\smallskip"]
    header = [_two_lines(name) if number >= table.names else name for number, name in enumerate(table.header)]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines.append(" & ".join(map(_latex_header, header)) + r" \\")
    lines.append(r"\midrule")
    group = None
    for row in table.rows:
        texts = list(map(shown, row))
        if table.names > 1:  # do not repeat the name of the row above
            if texts[0] == group:
                texts[0] = ""
            else:
                lines += [] if group is None else [r"\addlinespace"]
                group = texts[0]
        lines.append(" & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _two_lines(name: str) -> str:
    """Break a long header at the space nearest to its middle."""
    spaces = [at for at, character in enumerate(name) if character == " "]
    if len(name) <= 8 or not spaces:
        return name
    middle = min(spaces, key=lambda at: abs(at - len(name) / 2))
    return f"{name[:middle]}\n{name[middle + 1 :]}"


def _latex_header(name: str) -> str:
    lines = list(map(_escaped, name.split("\n")))
    return lines[0] if len(lines) == 1 else rf"\shortstack[r]{{{lines[0]}\\{lines[1]}}}"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # the straight quote needs another font encoding
    "[": "{[}",  # at the start of a row, LaTeX would read it as an option of the \\ before
    "±": r"$\pm$",
    "†": r"$^{\dagger}$",
}
#: Letters with accents that plain LaTeX has.
_LATIN = "".join(chr(code) for code in range(0xC0, 0x100) if code not in (0xD0, 0xD7, 0xDE, 0xF0, 0xF7, 0xFE))


def _escaped(text: str) -> str:
    """Escape characters that are special in LaTeX; letters that its standard fonts lack become question marks."""
    safe = "".join(_LATEX.get(c, c if (c.isascii() and c.isprintable()) or c in _LATIN else "?") for c in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", safe)


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
