"""What the user sees of a sweep: a live table of its runs on a terminal, plain lines otherwise."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rayfl.uris import without_secrets

_STYLES = {
    "queued": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "skipped": "green",
}
#: Maximum rows of the live table. If there are more runs, it shows all running ones if possible, then failed ones, then
#: finished ones; of runs in the same state, it shows those that changed most recently.
_MOST_ROWS = 25


@dataclass
class Row:
    """A run as it is shown."""

    name: str
    rounds: int
    state: str = "queued"
    round: int = 0
    shown: str = ""
    changed: float = 0.0


class Board:
    """Shows the runs of one sweep. `quiet` shows nothing."""

    def __init__(self, names_and_rounds: Sequence[tuple[str, int]], quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._rows = {name: Row(name, rounds) for name, rounds in names_and_rounds}
        self._live: Live | None = None
        self._quiet = quiet

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the table up to date within this block."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, get_renderable=self._table, refresh_per_second=4) as self._live:
            yield
        self._live = None

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(without_secrets(text), style="dim", markup=False, soft_wrap=True)

    def set(self, name: str, state: str, round: int | None = None, shown: str | None = None) -> None:
        """Show a run's state, its last round and that round's metric."""
        row = self._rows[name]
        before = row.state
        row.state, row.changed = state, time.monotonic()
        row.round = row.round if round is None else round
        row.shown = row.shown if shown is None else shown
        if self._live is None and state != before:
            counts = self.counts()
            finished = sum(counts[s] for s in ("done", "skipped", "failed"))
            end = f"  {row.shown}" if row.shown else ""
            self._console.print(f"{finished}/{len(self._rows)}  {name}: {state}{end}", markup=False, soft_wrap=True)

    def counts(self) -> Counter[str]:
        """Return how many runs are in each state."""
        return Counter(row.state for row in self._rows.values())

    def _table(self) -> Group:
        table = Table("run", "state", "round", "last", box=None, pad_edge=False)
        rows = list(self._rows.values())
        if len(rows) > _MOST_ROWS:
            order = {"running": 0, "failed": 1, "done": 2, "stopped": 2, "queued": 3, "skipped": 4}
            recent = sorted(rows, key=lambda row: (order.get(row.state, 5), -row.changed))[:_MOST_ROWS]
            rows = [row for row in rows if row in recent]
        for row in rows:
            state = Text(row.state, style=_STYLES.get(row.state, ""))
            table.add_row(Text(row.name), state, f"{row.round}/{row.rounds}", row.shown)
        counts = self.counts()
        line = ", ".join(f"{counts[state]} {state}" for state in _STYLES if counts[state])
        return Group(table, Text(line, style="bold"))
