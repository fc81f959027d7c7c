"""A table with a line per run, for a terminal; on a narrow one, columns are left out and text is shortened."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from rayfl.errors import one_line
from rayfl.results.status import Status, time_text

STYLES = {
    "done": "green",
    "stopped early": "green",
    "running": "cyan",
    "unfinished": "yellow",
    "failed": "red",
    "damaged": "red",
}
_RIGHT = ("seed", "round", "K", "ARI")
#: Columns to leave out, in this order, if there is too little room.
_DISPENSABLE = ("begun", "data", "seed", "method")
_LEAST_NAME, _LEAST_NOTE = 16, 20
_GAP = 2


def run_table(
    names: Sequence[str], statuses: Sequence[Status], notes: Sequence[str], title: str = "", room: int | None = None
) -> Table:
    """Return a table with a line per run and a note at its end. It is at most `room` wide, if possible."""
    columns = _columns(names, statuses)
    if any(notes):
        columns[title] = [Text(note) for note in notes]
    if room is not None:
        _fit(columns, title, room)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, cells in columns.items():
        right = name in _RIGHT or cells is columns.get(_metric_title(statuses))
        table.add_column(Text(one_line(name)), justify="right" if right else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def figure(value: float | None, form: str) -> str:
    """Return a number as text, or `-` for None."""
    return "-" if value is None else format(value, form)


def _columns(names: Sequence[str], statuses: Sequence[Status]) -> dict[str, list[Text]]:
    title = _metric_title(statuses)
    return {
        "run": [Text(name) for name in names],
        "method": [Text(one_line(s.method or "-")) for s in statuses],
        "data": [Text(one_line(s.data or "-")) for s in statuses],
        "seed": [Text(figure(s.seed, "d")) for s in statuses],
        "round": [Text(f"{s.round}/{figure(s.rounds, 'd')}") for s in statuses],
        "state": [Text(s.state, STYLES[s.state]) for s in statuses],
        title: [
            Text(one_line(f"{s.metric} " if title == _METRICS and s.metric else "") + figure(s.value, ".4f"))
            for s in statuses
        ],
        "K": [Text(figure(s.clusters, "d")) for s in statuses],
        "ARI": [Text(figure(s.ari, ".2f")) for s in statuses],
        "begun": [Text(time_text(s.begun)) for s in statuses],
    }


_METRICS = "metric"


def _metric_title(statuses: Sequence[Status]) -> str:
    """Return the metric's name if all runs have the same one, else "metric"."""
    metrics = {status.metric for status in statuses if status.metric is not None}
    return f"{metrics.pop()}" if len(metrics) == 1 else _METRICS


def _fit(columns: dict[str, list[Text]], title: str, room: int) -> None:
    """Leave out columns, then shorten names and notes, until the table fits or nothing more can be shortened."""
    for name in _DISPENSABLE:
        if _excess(columns, title, room) > 0:
            del columns[name]
    excess = _excess(columns, title, room)
    if excess > 0:
        most = max(_width("run", columns["run"]) - excess, _LEAST_NAME)
        columns["run"] = [_shortened(name, most) for name in columns["run"]]
    if title in columns:
        rest = sum(_width(name, cells) + _GAP for name, cells in columns.items() if name != title)
        for note in columns[title]:
            note.truncate(max(room - rest, _LEAST_NOTE), overflow="ellipsis")


def _excess(columns: dict[str, list[Text]], title: str, room: int) -> int:
    """Return by how much the table is too wide, if notes are as short as allowed."""
    widths = {name: _width(name, cells) for name, cells in columns.items()}
    if title in widths:
        widths[title] = min(widths[title], _LEAST_NOTE)
    return sum(widths.values()) + _GAP * (len(widths) - 1) - room


def _width(name: str, cells: list[Text]) -> int:
    return max(cell_len(text) for text in (name, *[cell.plain for cell in cells]))


def _shortened(name: Text, most: int) -> Text:
    """Cut a long name in the middle, because names of runs often differ at the end."""
    text = name.plain
    if len(text) <= most:
        return name
    return Text(f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}")
