"""How an export proceeds: which runs, to which folder, once or until the runs are complete."""

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from rayfl.errors import InputError, RayflError, closest, one_line, shown
from rayfl.following.export.target import Target
from rayfl.following.export.to_csv import CsvExport
from rayfl.following.export.to_mlflow import MlflowExport
from rayfl.following.export.to_tensorboard import TensorBoardExport
from rayfl.following.export.to_wandb import WandbExport
from rayfl.following.looking import INTERVAL, PATIENCE, Ending, Looker
from rayfl.following.new_rounds import NewRounds
from rayfl.input_tree import expanded
from rayfl.results import Storage
from rayfl.results.status import Status
from rayfl.uris import without_secrets

TARGETS: dict[str, type[Target]] = {
    target.kind: target for target in (TensorBoardExport, WandbExport, MlflowExport, CsvExport)
}


def export(
    paths: Sequence[str | Path],
    to: str,
    out: str | Path | None = None,
    *,
    follow: bool = False,
    interval: float = 2 * INTERVAL,
    patience: float = PATIENCE,
    say: Callable[[str], None] = print,
) -> int:
    """Export all runs below some folders; return 0, or 1 if a run is damaged, or unfinished after `follow`.

    With `follow`, continue until the runs are complete. Rounds that an earlier export has written are not exported
    again, except to wandb: if there are new rounds, all rounds are exported again.
    """
    target = _found(to)
    folder = _output(out, to)
    looker, ending = Looker(*paths), Ending(patience)
    statuses = looker.look()
    if not statuses:
        raise InputError(f"{', '.join(without_secrets(str(path)) for path in paths)}: no runs there")
    _check_names(looker, statuses)
    _make(folder, statuses)
    exports = _Exports(target, folder, looker, say)
    try:
        exports.update(statuses)
        while follow and not ending.is_here(statuses, one=_is_one(paths, statuses)):
            time.sleep(looker.pause(interval))
            statuses = looker.look()
            _check_names(looker, statuses)
            exports.update(statuses)
    finally:
        exports.close()
    left = [s for s in statuses if s.run.path in exports.damaged or (follow and not s.complete)]
    for status in left:
        if status.state == "unfinished":
            say(f"{status.run.path} is unfinished, and no process runs it; resume it: rayfl resume {status.run.path}")
    return 1 if left else 0


class _Exports:
    """The exports of several runs; an export stays open while its run continues."""

    def __init__(self, target: type[Target], folder: Path, looker: Looker, say: Callable[[str], None]) -> None:
        self._target, self._folder, self._looker, self._say = target, folder, looker, say
        self._open: dict[str, tuple[Target, NewRounds]] = {}
        self._done: dict[str, int] = {}  # rounds of runs that were complete
        self.damaged: set[str] = set()  # paths of runs that cannot be read

    def update(self, statuses: Sequence[Status]) -> None:
        """Export what is new."""
        for status in statuses:
            path = status.run.path
            if status.state == "damaged":
                self._tell_damage(status, status.problem or "")
            elif self._done.get(path) != status.rounds:
                try:
                    self._export(status)
                except pa.ArrowException as error:  # damage in a table that the status does not need
                    self._tell_damage(status, str(error).splitlines()[0])
                    continue
                except OSError as error:
                    raise RayflError(f"{self._folder} cannot be written to: {error.strerror or error}") from None
                if status.complete:
                    self._open.pop(path)[0].close()
                    self._done[path] = status.rounds or 0

    def _tell_damage(self, status: Status, problem: str) -> None:
        if status.run.path not in self.damaged:
            self._say(f"{self._looker.name(status)}: damaged, not exported: {one_line(problem)}")
        self.damaged.add(status.run.path)

    def _export(self, status: Status) -> None:
        path, name = status.run.path, self._looker.name(status)
        first_time = path not in self._open
        if first_time:
            target = self._target(self._folder, name, status)
            if target.starts_over and target.note and target.after < target.note["round"]:
                self._say(f"{name}: {target.starts_over}")
            self._open[path] = target, NewRounds(status.run.storage, target.after, status.begun)
        target, new = self._open[path]
        target.status = status
        before = target.after
        for batch in new.read():
            target.write(batch)
            target.after = batch.last
        if target.after > before:
            self._say(f"{name}: rounds {before + 1} to {target.after} -> {target.folder}")
        elif first_time:
            self._say(f"{name}: nothing new after round {before} -> {target.folder}")

    def close(self) -> None:
        """Close all open exports; for runs that continue, a later export adds the further rounds."""
        for target, _ in self._open.values():
            target.close()
        self._open.clear()
        self._target.close_tool()


def _found(to: str) -> type[Target]:
    if to not in TARGETS:
        raise InputError(f"--to {shown(to)} is not allowed{closest(to, list(TARGETS))}; allowed: {', '.join(TARGETS)}")
    target = TARGETS[to]
    if target.package is not None:
        spec = importlib.util.find_spec(target.package)
        if spec is None or spec.origin is None:  # no origin: only a folder of that name in the current folder
            raise InputError(f"--to {to} needs a package that is not installed: pip install 'rayfl[{to}]'")
    return target


def _output(out: str | Path | None, to: str) -> Path:
    if out is not None and "://" in str(out):
        raise InputError(f"-o {out} is a URI: exports go to local folders, give one")
    return expanded(str(out)) if out is not None else Path("exports") / to


def _check_names(looker: Looker, statuses: Sequence[Status]) -> None:
    """Refuse runs with the same name, because they would be exported to the same folder."""
    seen: dict[str, str] = {}
    for status in statuses:
        other = seen.setdefault(looker.name(status), status.run.path)
        if other != status.run.path:
            raise InputError(
                f"{other} and {status.run.path} have the same name: export them one by one, each with its own -o"
            )


def _make(folder: Path, statuses: Sequence[Status]) -> None:
    """Make the output folder, which must not be inside a run's folder."""
    for status in statuses:
        if folder.absolute().is_relative_to(status.run.path):
            raise InputError(f"-o {folder} is in the run folder {status.run.path}: give a folder outside of it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{folder} cannot be made: {reason}; give another folder with -o") from None


def _is_one(paths: Sequence[str | Path], statuses: Sequence[Status]) -> bool:
    """Whether all given folders are runs, so that no further runs can appear."""
    return len(statuses) == len(paths) and {s.run.path for s in statuses} == {Storage(p).path for p in paths}
