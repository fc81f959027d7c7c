"""Carries out a sweep: as many runs at a time as the machine or the cluster allows.

The results are bit-identical to those of single runs, because they do not depend on where clients train. A sweep can be
stopped or killed at any moment; when it is started again, it skips complete runs and resumes unfinished ones.
"""

import os
import queue
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayfl.config import Config
from rayfl.errors import InputError, main_line
from rayfl.host_memory import memory_here
from rayfl.own_code import named_again
from rayfl.results import Run, Storage, load
from rayfl.simulation.preparation import runs_here
from rayfl.simulation.signals import GRACE, Stopped, stopping
from rayfl.sweeping.board import Board
from rayfl.sweeping.plan import PlannedRun, SweepFolder, below, planned_sweep, with_names
from rayfl.sweeping.processes import Report, Runner

#: Memory of a process with torch before it has any data. Unless `jobs` is given, at most as many runners are
#: started as fit into half of this machine's memory.
RUNNER_BYTES = 700 * 2**20


@dataclass(frozen=True)
class Placement:
    """How runs are spread: `jobs` at a time, each on `actors` client actors (0: in the runner's own process)."""

    jobs: int
    actors: int
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep: its folder, the complete runs, and why the others failed."""

    path: str
    runs: list[Run]
    failures: dict[str, str]


def sweep(
    given: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    sets: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    jobs: int | None = None,
    retry: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Carry out every run of a grid; with `retry`, runs that failed before are tried again.

    `sets` are names of sets in the file. The folder of the sweep is named after them too. With `only`, a name or a
    pattern as in a shell, or several, only the runs with such names are carried out.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: at least one run at a time is needed")
    sets, only = ([names] if isinstance(names, str) else list(names) for names in (sets, only))
    runs = with_names(planned_sweep(given, overrides, sets), only)
    storage = Storage(runs[0].config.output.dir)
    storage.check()
    storage.create()
    with stopping() as stop, storage.locked():
        stop.at_once = True
        folder = SweepFolder(storage)
        folder.agree(runs)
        board = Board([(run.name, run.config.rounds) for run in runs], quiet)
        with board.shown():
            scheduler = Scheduler(folder, board, retry)
            try:
                scheduler.carry_out(runs, jobs)
            except KeyboardInterrupt as error:
                number = error.number if isinstance(error, Stopped) else 2
                command = "the same sweep"
                if isinstance(given, str | Path) and not isinstance(overrides, Mapping):
                    options = [word for s in sets for word in ("--set", s)]
                    options += [word for name in only for word in ("--only", name)]
                    command = shlex.join(["rayfl", "sweep", str(given), *overrides, *options])
                raise Stopped(number, f"stopped; finished runs are kept; go on with: {command}") from None
    done = [run for run in runs if run.name not in scheduler.failures]
    return SweepResult(storage.path, [load(below(run.config.output.dir, run.name)) for run in done], scheduler.failures)


class Scheduler:
    """Gives runs to runners, and handles their reports."""

    def __init__(self, folder: SweepFolder, board: Board, retry: bool) -> None:
        self._folder, self._board, self._retry = folder, board, retry
        self._reports: queue.Queue[Report] = queue.Queue()
        self._runners: list[Runner] = []
        self.failures: dict[str, str] = {}

    def carry_out(self, runs: Sequence[PlannedRun], jobs: int | None) -> None:
        """Carry out all runs that are not complete."""
        waiting = [run for run in runs if self._has_work(run)]
        if not waiting:
            return
        with placed(waiting, jobs) as placement, tempfile.TemporaryDirectory(prefix="rayfl-sweep-") as logs:
            where = "in its own process" if placement.actors == 0 else f"on {placement.actors} client actors"
            many = f"{len(waiting)} runs, up to {placement.jobs} at a time, each"
            self._board.say(f"{many if len(waiting) > 1 else '1 run'} {where}")
            try:
                self._work(waiting, placement, Path(logs))
            except BaseException:
                self._stop()
                raise
            for runner in self._runners:
                runner.close(timeout=10)

    def _has_work(self, run: PlannedRun) -> bool:
        state = self._folder.state(run)
        if state == "failed" and self._retry:
            self._folder.forget_failure(run.name)
            return True
        if state == "failed":
            self._fail(run.name, self._folder.failure(run.name))
        if state == "done":
            self._board.set(run.name, "skipped", run.config.rounds)
        return state in ("new", "unfinished")

    def _work(self, waiting: list[PlannedRun], placement: Placement, logs: Path) -> None:
        while waiting or any(runner.run for runner in self._runners):
            live = [runner for runner in self._runners if not runner.ended]
            for _ in range(min(placement.jobs - len(live), len(waiting) - sum(r.run is None for r in live))):
                log = logs / f"runner-{len(self._runners)}.log"
                self._runners.append(Runner(self._reports, log, placement.environment))
            for runner in self._runners:
                if runner.run is None and not runner.ended and waiting:
                    self._hand_over(runner, waiting.pop(0), placement)
            self._take(self._reports.get())

    def _hand_over(self, runner: Runner, run: PlannedRun, placement: Placement) -> None:
        order: dict[str, Any] = {"actors": placement.actors, "path": None}
        order["config"] = run.config.model_dump(mode="json", exclude_none=True)
        if self._folder.state(run) == "unfinished":
            order["path"] = below(run.config.output.dir, run.name)
            # A resume must name the user's code again. The sweep's file names this code, and the user wrote that file.
            order["overrides"] = {"rounds": run.config.rounds, **named_again(run.config)}
        self._board.set(run.name, "running")
        runner.send(run, order)

    def _take(self, report: Report) -> None:
        runner, run = report.runner, report.runner.run
        if report.event == "ended":
            runner.ended = True
            if run is not None:
                self._note_failure(run, runner.why_it_ended())
                runner.run = None
        elif run is None:
            return
        elif report.event == "round":
            self._board.set(run.name, "running", report.what["round"], report.what["shown"])
        elif report.event == "warning":
            self._board.say(f"{run.name}: warning: {report.what['message']}")
        elif report.event == "done":
            # Round reports are throttled: the last of them may be from an earlier round.
            self._board.set(run.name, "done", run.config.rounds, report.what["shown"])
            runner.run = None
        elif report.event == "failed":
            self._note_failure(run, report.what["message"])
            runner.run = None
        elif report.event == "stopped":  # a signal has stopped this runner's process, but not the sweep
            self._note_failure(run, "it was stopped by a signal")
            runner.run = None

    def _note_failure(self, run: PlannedRun, message: str) -> None:
        self._folder.note_failure(run.name, message)
        self._fail(run.name, message)

    def _fail(self, name: str, message: str) -> None:
        self.failures[name] = message
        self._board.set(name, "failed", shown=main_line(message)[:100])

    def _stop(self) -> None:
        """Let every run finish its round and write a checkpoint; kill those that take too long."""
        for runner in self._runners:
            runner.ask_to_stop()
        end = time.monotonic() + GRACE + 5
        for runner in self._runners:
            runner.close(timeout=max(0.0, end - time.monotonic()))


@contextmanager
def placed(runs: Sequence[PlannedRun], jobs: int | None) -> Iterator[Placement]:
    """Decide how to spread the runs; start one Ray for all of them, if they need it."""
    configs = [run.config for run in runs]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = max(1, int((memory_here() or RUNNER_BYTES) // (2 * RUNNER_BYTES)))
    most = min(len(runs), jobs or min(room, 2 * cores))
    serial = [config.federation == "serial" for config in configs]
    if all(serial) or (len(runs) >= cores and all(s or _needs_no_ray(c) for s, c in zip(serial, configs, strict=True))):
        yield Placement(min(most, jobs or cores), 0)
        return
    from rayfl.actors.cluster import actors_that_fit, connected, gcs_address

    first = next(config for config in configs if config.federation == "ray")
    with connected(first.ray):
        slots = actors_that_fit(first.ray.model_copy(update={"actors": None}), None)
        each = first.ray.actors
        if each is None:
            at_once = min(most, slots)
            yield Placement(at_once, slots // at_once, {"RAY_ADDRESS": gcs_address()})
        else:
            actors_that_fit(first.ray, None)  # refuses a number of actors that can never fit
            yield Placement(max(1, min(most, slots // each)), each, {"RAY_ADDRESS": gcs_address()})


def _needs_no_ray(config: Config) -> bool:
    """Whether a run needs no client actors: one process on this machine can train all its clients."""
    ray = config.ray
    return runs_here(config) and ray.actors in (None, 1) and not (ray.gpu_share or ray.resources or ray.placement_group)
