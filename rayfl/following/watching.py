"""`rayfl watch`: a live view of one run or of a folder of runs, read from disk only.

It needs no contact with the running process, which may be on another machine that shares the folder.
"""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rayfl.errors import InputError
from rayfl.following import views
from rayfl.following.looking import INTERVAL, PATIENCE, Ending, Looker
from rayfl.results import Storage
from rayfl.results.status import Status
from rayfl.uris import without_secrets


def watch(
    path: str | Path, interval: float = INTERVAL, patience: float = PATIENCE, console: Console | None = None
) -> int:
    """Show runs until all are complete, then return 0; return 1 if some are unfinished and no process runs them.

    On a terminal the view is refreshed in place. Elsewhere a line is printed whenever a run has changed.
    """
    if not 0 < interval < 3600 or not 0 <= patience < 1e6:
        raise InputError(f"--interval {interval} and --patience {patience}: give seconds, and an interval above 0")
    console = console or Console(highlight=False)
    looker, ending = Looker(path), Ending(patience)
    statuses = looker.look()
    if not statuses:
        raise InputError(f"{without_secrets(str(path))} holds no runs: give a run folder, or a folder that holds runs")
    one = len(statuses) == 1 and statuses[0].run.path == Storage(path).path
    with _screen(path, one, console) as screen:
        screen.show(statuses)
        while not ending.is_here(statuses, one):
            time.sleep(looker.pause(interval))
            statuses = looker.look()
            if not statuses:
                raise InputError(f"{without_secrets(str(path))}: its runs were deleted or moved while being watched")
            screen.show(statuses)
    left = [status for status in statuses if not status.complete]
    for status in left:
        if status.state == "unfinished":
            console.print(
                f"{status.run.path} is unfinished, and no process runs it; resume it: rayfl resume"
                f" {shlex.quote(status.run.path)}",
                markup=False,
                soft_wrap=True,
            )
    return 1 if left else 0


class _Lines:
    """Prints a line whenever a run has changed."""

    def __init__(self, path: str | Path, console: Console) -> None:
        self._path, self._console = path, console
        self._shown: dict[str, tuple[object, ...]] = {}

    def show(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            now = (status.state, status.round, status.rounds, status.problem)
            if self._shown.get(status.run.path) != now:
                self._shown[status.run.path] = now
                self._console.print(views.plain_line(self._path, status), markup=False, soft_wrap=True)


class _Terminal:
    """Refreshes a view in place."""

    def __init__(self, path: str | Path, one: bool, live: Live) -> None:
        self._path, self._one, self._live = path, one, live

    def show(self, statuses: Sequence[Status]) -> None:
        size = self._live.console.size
        if self._one:
            self._live.update(views.one_run(self._path, statuses[0], size.width), refresh=True)
        else:
            self._live.update(views.many_runs(self._path, statuses, size.width, size.height), refresh=True)


@contextmanager
def _screen(path: str | Path, one: bool, console: Console) -> Iterator[_Lines | _Terminal]:
    if not console.is_terminal:
        yield _Lines(path, console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Terminal(path, one, live)
