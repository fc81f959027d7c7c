"""What the user sees of a run: a live progress bar on a terminal, plain lines otherwise, and a table at the end.

Progress goes to the error stream; the table and, as its last line, the run folder go to standard output.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from rayfl.results import Run
from rayfl.simulation.server import RoundRecord
from rayfl.uris import without_secrets

#: What is shown instead of a metric before the first evaluated round.
NOT_TESTED = "not tested yet"
_PLAIN_LINES = 50  # a log should show how a run proceeds, but not each of a thousand rounds
_BAR, _NARROW_BAR, _NARROW = 24, 4, 120  # widths of the bar; below 120 columns, a terminal gets the narrow bar
_TIME_LEFT = 7  # columns of hours, minutes and seconds


class Screen:
    """Shows one run. `quiet` shows nothing, for use from Python and in tests."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        """Progress goes to `console`; by default to the error stream."""
        self._console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self._out = Console(quiet=quiet, highlight=False)
        self._quiet = quiet
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._rounds = self._done = 0
        self._begin = time.monotonic()
        self._shown = NOT_TESTED

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(without_secrets(text), style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a warning."""
        self._console.print(f"warning: {without_secrets(text)}", style="yellow", markup=False, soft_wrap=True)

    @contextmanager
    def rounds(self, count: int, done: int = 0) -> Iterator[None]:
        """Show progress over `count` rounds within this block; `done` of them are already finished."""
        self._rounds, self._done, self._begin = count, done, time.monotonic()
        if self._quiet or not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=self._bar),
            TextColumn("{task.fields[status]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self._console) as progress:
            self._progress = progress
            self._task = progress.add_task("rounds", total=count, completed=done, status="")
            yield
        self._progress = None

    def show_round(self, record: RoundRecord) -> None:
        """Show the results of a round."""
        rounds, number = record.summary, record.number
        if "judgement" in record.extras:
            self.say(f"round {number}: {_verdict(record.extras['judgement'])}")
        metric = next((name for name in rounds if f"{name}_mean" in rounds), None)
        if metric is not None:  # the round was evaluated
            self._shown = f"{metric} {rounds[metric]:.3f}"
        sizes = None if record.clusters is None else np.sort(record.clusters["size"])[::-1].tolist()
        forms = list(_forms(self._shown, sizes, rounds.get("ari"), rounds["seconds_total"]))
        if self._progress is not None:
            status = next((form for form in forms if len(form) <= self._room), forms[-1])
            self._progress.update(self._task, completed=number, status=status)
        elif number in (self._done + 1, self._rounds) or number % max(1, self._rounds // _PLAIN_LINES) == 0:
            left = (self._rounds - number) * (time.monotonic() - self._begin) / (number - self._done)
            self._console.print(
                f"round {number}/{self._rounds}  {forms[0]}  {left:.0f} s left", markup=False, soft_wrap=True
            )

    @property
    def _bar(self) -> int:
        return _BAR if self._console.width >= _NARROW else _NARROW_BAR

    @property
    def _room(self) -> int:
        """How many columns the terminal has for the results of a round."""
        others = [len("round"), 2 * len(str(self._rounds)) + 1, self._bar, len("left"), _TIME_LEFT]
        return self._console.width - sum(others) - len(others)  # a space after each

    def summarise(self, run: Run) -> None:
        """Show the small table of a finished run, and its folder on the last line."""
        if self._quiet:
            return
        rounds = run.rounds
        last = rounds.iloc[-1]
        table = Table(title=f"{last['method']}, seed {last['seed']}, after {last['round']} rounds", show_header=False)
        table.add_column(justify="left")
        table.add_column(justify="right")
        measured = {}
        for metric in rounds.columns:
            if f"{metric}_mean" in rounds.columns and last[metric] == last[metric]:  # NaN if the task lacks it
                measured[f"{metric.replace('macro_f1', 'macro-F1')}, weighted by test size"] = f"{last[metric]:.4f}"
                if metric == "accuracy":
                    measured["accuracy, mean over clients"] = f"{last['accuracy_mean']:.4f}"
        for name, value in {
            **measured,
            "clusters": _number(last["clusters"], "d"),
            "adjusted Rand index against the planted clusters": _number(last["ari"], ".3f"),
            "seconds per round, median": f"{rounds['seconds_total'].median():.2f}",
            "MB that clients would have sent / received": f"{rounds['bytes_up'].sum() / 1e6:.1f} / "
            f"{rounds['bytes_down'].sum() / 1e6:.1f}",
        }.items():
            table.add_row(name, value)
        self._out.print(table)
        # Plain print, because rich would break a long path into several lines.
        print(run.path, file=sys.stdout, flush=True)


def _verdict(judgement: Mapping[str, Any]) -> str:
    """Say in one line which number of clusters was found, and how certain it is."""
    clusters, others = judgement["clusters"], [k for k in judgement["supported"] if k != judgement["clusters"]]
    text = f"{clusters} cluster{'s' * (clusters > 1)}: {judgement['verdict']}"
    if judgement["score"] is not None:
        gain = f"; the best split is better by {judgement['gain']:.0%}"
        text += f"{gain}, score {judgement['score']:.1f} (limit {judgement['limit']:.1f})"
    text += f"; {judgement['asked']} clients asked"
    return text + (f"; {' or '.join(map(str, others))} would do too" if others else "")


def _forms(metric: str, sizes: list[int] | None, ari: float | None, seconds: float) -> Iterator[str]:
    """Yield the results of a round in one line, the longest form first; shorter forms leave out the least important."""
    agreement = "" if ari is None else f"ARI {ari:.2f}"

    def joined(space: str, *parts: str) -> str:
        return space.join(part for part in (metric, *parts) if part)

    yield joined("  ", _clusters(sizes, 8), agreement, f"{seconds:.2f} s/round")
    yield joined("  ", _clusters(sizes, 8), agreement, f"{seconds:.2f} s")
    for most in range(8, -1, -1):
        yield joined(" ", _clusters(sizes, most), agreement, f"{seconds:.2f} s")
    yield joined(" ", _clusters(sizes, 0), agreement)
    yield joined(" ", _clusters(sizes, 0))
    yield metric


def _clusters(sizes: list[int] | None, most: int) -> str:
    """Return the number of clusters and the sizes of the largest as text."""
    if sizes is None:
        return ""
    listed = ",".join(map(str, sizes[:most])) + (",..." if len(sizes) > most else "")
    return f"K {len(sizes)}" + (f" ({listed})" if most else "")


def _number(value: float, form: str) -> str:
    if value is None or value != value:  # NaN, or pandas' NA as float
        return "-"
    return format(int(value) if form == "d" else value, form)
