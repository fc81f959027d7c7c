"""The blocks of a section of the page, as plain data: `page` turns them into HTML, and escapes every string."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A figure as Plotly takes it: traces and layout.
Figure = Mapping[str, Any]


@dataclass(frozen=True)
class Paragraph:
    """A few sentences; `kind` is text, note (small) or answer (large)."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Chart:
    """One interactive figure. `name` is its key in the page's data; `height` is in pixels."""

    name: str
    figure: Figure
    title: str
    caption: str = ""
    height: int = 380


@dataclass(frozen=True)
class Row:
    """Charts side by side if there is room, else one below the other."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `best` is shown bold, `mark` is a small sign behind the text, `hint` is shown on hover."""

    text: str
    best: bool = False
    mark: str = ""
    hint: str = ""
    colour: str | None = None


@dataclass(frozen=True)
class DataTable:
    """A table with a header; columns in `numeric` are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    numeric: frozenset[int] = frozenset()
    caption: str = ""
    hints: Mapping[int, str] = field(default_factory=dict)  # what a column means, by its number
    name: str = ""


@dataclass(frozen=True)
class Commands:
    """Lines for a shell."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden until the reader clicks on a line."""

    summary: str
    blocks: "Sequence[Block]"


@dataclass(frozen=True)
class PerRun:
    """The same blocks for several runs, by the run's number; the page shows those of the run chosen in a list."""

    variants: "Mapping[int, Sequence[Block]]"


Block = Paragraph | Chart | Row | DataTable | Commands | Folded | PerRun


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `name` is its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""
