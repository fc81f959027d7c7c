"""Checking runs again and again while they are running: what has changed, and when to stop waiting."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rayfl.following.listing import name_below
from rayfl.results import load_all
from rayfl.results.locks import is_locked
from rayfl.results.status import Status, read_status

#: Seconds between two checks, and how long to wait for a run that no process writes to: it may soon be resumed.
INTERVAL, PATIENCE = 1.0, 10.0
#: Checking takes at most this fraction of the time, for any number of runs.
_MOST_SHARE = 0.25


class Looker:
    """Reads the statuses of all runs below some folders; a complete run is read once, unless it is locked again."""

    def __init__(self, *paths: str | Path) -> None:
        self._paths = paths
        self._known: dict[str, Status] = {}
        self._names: dict[str, str] = {}
        self._took = 0.0

    def look(self) -> list[Status]:
        """Return the statuses in the order in which the runs started; InputError if a folder does not exist."""
        begin = time.monotonic()
        found: dict[str, Status] = {}
        for path in self._paths:
            for run in load_all(path):
                known = self._known.get(run.path)
                if known is None or not known.complete or is_locked(run.storage):
                    known = read_status(run)
                found[run.path] = known
                self._names.setdefault(run.path, name_below(path, known))
        self._known = found
        self._took = time.monotonic() - begin
        return sorted(found.values(), key=lambda status: (status.begun or 0.0, status.run.path))

    def name(self, status: Status) -> str:
        """Return the run's path relative to the folder in which it was found."""
        return self._names[status.run.path]

    def pause(self, interval: float) -> float:
        """Return the seconds to wait until the next check."""
        return max(interval, self._took * (1 / _MOST_SHARE - 1))


class Ending:
    """Decides when to stop waiting: all runs are complete, or no process has written for a while.

    Without locks (in object stores), an unfinished run counts as running.
    """

    def __init__(self, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._last = clock()
        self._seen_active = False

    def is_here(self, statuses: Sequence[Status], one: bool) -> bool:
        """Whether to stop waiting; with `one`, all given folders are runs themselves, so no further runs can appear."""
        if any(map(_is_active, statuses)):
            self._last, self._seen_active = self._clock(), True
            return False
        if all(status.complete for status in statuses) and (one or not self._seen_active):
            return True
        # In a sweep, the next run starts a moment after the last one has ended.
        return self._clock() - self._last >= self._patience


def _is_active(status: Status) -> bool:
    return status.state == "running" or (status.state == "unfinished" and status.writing is None)


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """On SIGTERM and Ctrl-C, close everything that is open, then exit with 143 or 130."""
    import signal
    import sys

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
