"""Fewer rounds for a run that was stopped: `rayfl resume RUN rounds=N`, with N below what its config says.

The run then equals one that had N rounds from the start, with the same config otherwise. The last round is tested,
fine-tuned and saved differently from other rounds, so round N is repeated if it was already run.
"""

from pathlib import Path

from rayfl.config import Config, load_config
from rayfl.errors import InputError
from rayfl.methods import find_method, settled_options
from rayfl.own_code import check_objects
from rayfl.results import TABLES, Run, Storage, check_tables, load_begun, read_stopped, take_back, written_config
from rayfl.simulation.checkpoints import Checkpoints, as_config, refuse_changes
from rayfl.simulation.folder import CONFIG, config_file
from rayfl.simulation.preparation import task_metrics
from rayfl.simulation.screen import Screen
from rayfl.simulation.starting import Overrides, refuse_unnamed_code


def shorten(path: str | Path, overrides: Overrides = (), screen: Screen | None = None) -> None:
    """Write fewer rounds into the config of the run in a folder, if `overrides` ask for fewer.

    Nothing is changed if the result would differ from a run that had fewer rounds from the start.
    """
    if not _asks_for_fewer(load_begun(path), overrides):
        return
    storage = Storage(path)
    storage.check()
    with storage.locked():
        run = load_begun(path)  # again: before we had the lock, another process may have continued the run
        if not _asks_for_fewer(run, overrides):
            return
        config = load_config(run.config, overrides)
        refuse_changes(run.config, config)
        refuse_unnamed_code(run, overrides)
        check_objects(config)
        checkpoints = Checkpoints(storage, run.config)
        written = check_tables(storage, checkpoints.find(), config.method.name, config.seed, task_metrics(config.task))
        if (then := written_config(storage)) is not None:
            refuse_changes(as_config(then, f"{storage.path}/rounds"), config)
        _refuse_other_results(run, storage, config, written)
        # In this order, a crash at any point leaves a run that can be resumed, with fewer rounds or with all of them.
        left = checkpoints.remove_from(config.rounds)
        if written >= config.rounds:
            for table in TABLES:
                take_back(storage, table, left)
        storage.write(CONFIG, config_file(run.config.model_copy(update={"rounds": config.rounds})))
    over = config.local.schedule_options.get("over")
    if screen is not None and config.local.schedule == "cosine" and over is not None and over > config.rounds:
        screen.say(f"local.schedule=cosine goes over {over} rounds, as it did from the start: the run ends before that")


def _asks_for_fewer(run: Run, overrides: Overrides) -> bool:
    return load_config(run.config, overrides).rounds < run.config.rounds


def _refuse_other_results(run: Run, storage: Storage, config: Config, written: int) -> None:
    """Refuse if a run with this number of rounds from the start would have had other results."""
    given, stopped = f"rounds={config.rounds}", read_stopped(storage)
    if written >= run.config.rounds:
        raise InputError(f"{given}: all {written} rounds of the run are there, it is complete; start a new run")
    if run.stopped_early is not None:
        raise InputError(
            f"{given}: the run was stopped early after round {run.stopped_early.round} and is complete; start a new run"
        )
    if stopped is not None and config.rounds <= stopped.rounds:
        raise InputError(
            f"{given}: a callback stopped the run after round {stopped.round} of {stopped.rounds}, and it was given"
            f" more rounds since; use rounds={stopped.rounds + 1} or more"
        )
    if config.rounds < written:
        raise InputError(
            f"{given}: {written} rounds of the run are there, and no results are removed; use rounds={written} or more"
        )
    before, after = (_faults(run, config, rounds) for rounds in (run.config.rounds, config.rounds))
    if faults := [fault for fault in after if fault not in before]:
        raise InputError(*faults)


def _faults(run: Run, config: Config, rounds: int) -> list[str]:
    """Return what prevents the method from running with this number of rounds."""
    clients = config.partition.clients or int(run.clients["client"].max() if len(run.clients) else 0) + 1
    options = settled_options(config.method, rounds)
    return find_method(config.method.name).check(options, clients, config.cohort_size(clients), rounds)
