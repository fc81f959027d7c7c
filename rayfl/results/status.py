"""The status of a run, read from its folder only: its state, its last metrics, and when it started.

This is quick: it reads the config and `rounds`, never `clients`, and holds the lock only for an instant.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from rayfl.config import Config
from rayfl.errors import RayflError, main_line, one_line
from rayfl.results.locks import is_locked
from rayfl.results.reader import Run
from rayfl.uris import without_secrets

if TYPE_CHECKING:
    import pandas as pd

#: running: a process writes to the folder. unfinished: no process does, and rounds are missing. failed: like
#: unfinished, and the run's sweep has recorded why. damaged: it cannot be read.
State = Literal["done", "stopped early", "running", "unfinished", "failed", "damaged"]
#: A folder next to the runs of a sweep, with a text file for each run that failed.
FAILURES = "failures"
#: States that change only if the run is given more rounds.
COMPLETE = ("done", "stopped early")
#: The pace of a run is the mean over this many last rounds, because rounds with an evaluation take longer.
_PACE_ROUNDS = 20


@dataclass(frozen=True)
class Status:
    """The status of a run at one moment. Values that cannot be read, or are not measured, are None."""

    run: Run
    state: State
    writing: bool | None = None  # whether a process writes to the folder; None if there are no locks
    problem: str | None = None  # why it failed or is damaged
    method: str | None = None  # with its add-ons
    data: str | None = None
    seed: int | None = None
    round: int = 0  # the last round that is written
    rounds: int | None = None
    metric: str | None = None
    value: float | None = None
    clusters: int | None = None
    ari: float | None = None
    seconds_per_round: float | None = None
    begun: float | None = None  # seconds since 1970

    @property
    def complete(self) -> bool:
        """Whether the run has ended, after its last round or because a callback ended it."""
        return self.state in COMPLETE

    @property
    def seconds_left(self) -> float | None:
        """The time that the remaining rounds will take, at the pace of the last ones."""
        if self.seconds_per_round is None or self.rounds is None or self.state != "running":
            return None
        return self.seconds_per_round * (self.rounds - self.round)


def read_status(run: Run) -> Status:
    """Return the status of a run that was just opened. For a damaged run, the status says what is wrong."""
    begun = _begun(run)
    try:
        # Check the lock before reading the tables: otherwise, a run that ends in between would look unfinished.
        writing = is_locked(run.storage)
        config, rounds = run.config, run.rounds
        stopped, finished = run.stopped_early, run.finished
        metric = main_metric(rounds)
        failure = None if finished or writing else _failure(run)
        left: State = "running" if writing else "unfinished" if failure is None else "failed"
        return Status(
            run,
            state="stopped early" if stopped else "done" if finished else left,
            writing=writing,
            problem=failure,
            method=method_with_addons(config),
            data=config.data.source,
            seed=config.seed,
            round=int(rounds["round"].max()) if len(rounds) else 0,
            rounds=config.rounds,
            metric=metric,
            value=None if metric is None else last_value(rounds, metric),
            clusters=_whole(last_value(rounds, "clusters")),
            ari=last_value(rounds, "ari"),
            seconds_per_round=_mean(rounds["seconds_total"].tail(_PACE_ROUNDS)),
            begun=begun,
        )
    except Exception as error:  # any error: the folder may hold anything, and each file system has its own errors
        return Status(run, "damaged", problem=_reason(error), begun=begun)


def main_metric(rounds: "pd.DataFrame") -> str | None:
    """Return the first metric of the task, by its column of `rounds`; None before the first evaluation."""
    # The columns of some metrics exist in every run; they are empty if the task does not measure these metrics.
    metrics = (name for name in rounds.columns if f"{name}_mean" in rounds.columns)
    return next((name for name in metrics if rounds[name].notna().any()), None)


def last_value(rounds: "pd.DataFrame", column: str) -> float | None:
    """Return the last number in a column, since not every round is evaluated; None if there is none."""
    values = rounds[column].dropna()
    return float(values.iloc[-1]) if len(values) else None


def _mean(values: "pd.Series") -> float | None:
    mean = values.mean()
    return float(mean) if mean == mean else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def method_with_addons(config: Config) -> str:
    """Return the method's name with its add-ons: fesem+cam."""
    addons = config.method.options.get("addons") or []
    return "+".join([config.method.name, *map(str, addons if isinstance(addons, list) else [addons])])


def _begun(run: Run) -> float | None:
    """Return when the run started: its lock file is created then and never written to. None in object stores."""
    if "://" in run.path:
        return None
    times = []
    for name in (".lock", "config.yaml"):  # a resumed run writes its config again
        with suppress(OSError):
            times.append((Path(run.path) / name).lstat().st_mtime)
    return min(times, default=None)


def _failure(run: Run) -> str | None:
    """Return the error of a failed run, in one line of what its sweep has recorded; None if it did not fail."""
    if "://" in run.path:
        return None
    folder = Path(run.path)
    try:
        with (folder.parent / FAILURES / f"{folder.name}.txt").open(encoding="utf-8", errors="replace") as file:
            message = file.read(_MOST_TEXT)
    except OSError:
        return None
    return one_line(without_secrets(main_line(message) or "it failed"))


_MOST_TEXT = 100_000


def _reason(error: Exception) -> str:
    if isinstance(error, RayflError):
        return one_line(str(error))
    if isinstance(error, pa.ArrowException | OSError | ValueError):
        text = str(error).strip()
        return one_line(without_secrets(text.splitlines()[0] if text else type(error).__name__))
    return one_line(without_secrets(f"{type(error).__name__}: {error}"))


def time_text(moment: float | None) -> str:
    """Return a moment as text, in the local time zone.

    >>> time_text(None)
    '-'
    """
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
