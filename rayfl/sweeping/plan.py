"""What a sweep has to do: its runs with their configs, and how far each run got in an earlier start of the sweep.

runs/mine/sweep.json          the config of every run of the sweep mine.yaml
runs/mine/fedac-seed0/        a run's folder, as `rayfl run` makes it
runs/mine/failures/*.txt      why a run failed; the run is tried again only with --retry
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from rayfl.config import Config, load_config
from rayfl.config.loading import config_tree
from rayfl.errors import InputError, shown
from rayfl.results import Storage, load_begun
from rayfl.results.reader import SWEEP_MANIFEST
from rayfl.results.status import FAILURES
from rayfl.simulation.checkpoints import as_config, refuse_changes
from rayfl.simulation.preparation import resolve
from rayfl.sweeping.grid import Grid, read_grid

_MOST_LINES = 10

State = Literal["new", "unfinished", "done", "failed"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep. Its config has the run's name, and the sweep's folder as output.dir."""

    name: str
    config: Config


def planned_sweep(
    given: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    sets: str | Sequence[str] = (),
) -> list[PlannedRun]:
    """Return the runs of a sweep, after all checks that need no data; its folder has the file's and the sets' names."""
    sets = [sets] if isinstance(sets, str) else list(dict.fromkeys(sets))
    name = Path(given).stem if isinstance(given, str | Path) else "sweep"
    return planned(read_grid(given, overrides, sets), "-".join([name, *sets]))


def planned(grid: Grid, name: str) -> list[PlannedRun]:
    """Return the runs of a grid, after all checks that need no data; `name` is the sweep's folder."""
    runs, faults = [], []
    for point in grid.points:
        try:
            # In two steps, because a point may name another method or partition than the common part.
            config = load_config(config_tree(grid.common, grid.overrides), point.overrides)
            folder = below(config.output.dir, config.name or name)
            config = load_config(config, {"name": point.name, "output.dir": folder})
            resolve(config)
            runs.append(PlannedRun(point.name, config))
        except InputError as error:
            faults += [line if len(grid.points) == 1 else f"{point.name}: {line}" for line in error.lines]
    if len({run.config.output.dir for run in runs}) > 1:
        faults.append("output.dir and name apply to the whole sweep: give each of them one value")
    if faults:
        more = [f"... and {len(faults) - _MOST_LINES} more lines"] if len(faults) > _MOST_LINES else []
        raise InputError(*faults[:_MOST_LINES], *more)
    return runs


def with_names(runs: Sequence[PlannedRun], patterns: Sequence[str]) -> list[PlannedRun]:
    """Return the runs whose names match one of the patterns, as in a shell; without patterns, all runs."""
    for pattern in patterns:
        if not any(fnmatchcase(run.name, pattern) for run in runs):
            some = ", ".join(run.name for run in runs[:_MOST_LINES])
            more = f" and {len(runs) - _MOST_LINES} more" if len(runs) > _MOST_LINES else ""
            raise InputError(f"no run of this sweep has a name like {shown(pattern)}: the names are {some}{more}")
    return [run for run in runs if not patterns or any(fnmatchcase(run.name, pattern) for pattern in patterns)]


def below(folder: str, name: str) -> str:
    """Return the path or URI of a folder inside another; the options of a URI stay at its end."""
    path, mark, options = folder.partition("?") if "://" in folder else (folder, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


class SweepFolder:
    """The folder of a sweep: its runs and their progress."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def agree(self, runs: Iterable[PlannedRun]) -> None:
        """Refuse runs that started with another config; then write the configs to the manifest."""
        known = self._manifest()
        faults = []
        for run in runs:
            if self.storage.exists(f"{run.name}/config.yaml"):
                faults += self._changes(run, known.get(run.name))
            known[run.name] = run.config.to_tree()
        if faults:
            raise InputError(*faults[:_MOST_LINES])
        self.storage.write(SWEEP_MANIFEST, json.dumps({"runs": known}, indent=1).encode())

    def state(self, run: PlannedRun) -> State:
        """Return a run's state."""
        if self.storage.exists(self._failure(run.name)):
            return "failed"
        if not self.storage.exists(f"{run.name}/config.yaml"):
            return "new"
        begun = load_begun(below(run.config.output.dir, run.name))
        complete = self.storage.exists(f"{run.name}/rounds") and begun.finished
        return "done" if complete and begun.config.rounds >= run.config.rounds else "unfinished"

    def note_failure(self, name: str, message: str) -> None:
        """Record why a run failed."""
        self.storage.write(self._failure(name), message.encode())

    def failure(self, name: str) -> str:
        """Return why a run failed."""
        return self.storage.read(self._failure(name)).decode(errors="replace")

    def forget_failure(self, name: str) -> None:
        """Let a run be tried again."""
        if self.storage.exists(self._failure(name)):
            self.storage.remove(self._failure(name))

    def _failure(self, name: str) -> str:
        return f"{FAILURES}/{name}.txt"

    def _manifest(self) -> dict[str, Any]:
        if not self.storage.exists(SWEEP_MANIFEST):
            return {}
        try:
            known = json.loads(self.storage.read(SWEEP_MANIFEST))["runs"]
        except (ValueError, KeyError, TypeError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise InputError(
                f"{self.storage.path}/{SWEEP_MANIFEST} is damaged: restore it, or give the sweep another name"
            )
        return known

    def _changes(self, run: PlannedRun, then: Any) -> list[str]:
        where = f"{self.storage.path}/{run.name}"
        if not isinstance(then, Mapping):
            return [f"{where} exists and does not belong to this sweep: give the sweep another name, or move it away"]
        try:
            refuse_changes(as_config(then, f"{self.storage.path}/{SWEEP_MANIFEST}"), run.config)
        except InputError as error:
            return [f"{where}: {line}" for line in error.lines]
        return []
