"""One run from config to Parquet: check everything, start the federation, stream what each round gives.

A run can be left at any moment, by choice or by kill -9, and resumed: its rows and its last checkpoint are on disk.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rayfl.checkpoints import Checkpoints, Saves, refuse_changes
from rayfl.config import Config, load_config
from rayfl.errors import InputError, LostError, RayflError
from rayfl.preparation import Prepared, prepare, resolve
from rayfl.results import Run, RunWriter, Storage, check_tables, load
from rayfl.screen import Screen
from rayfl.server import RoundRecord, Server
from rayfl.stopping import Stop, Stopped, stopping
from rayfl.version import __version__

#: So often in a row may the same round be lost before the run gives up: something kills its actors each time.
MOST_LOSSES = 5


class RunsRounds(Saves, Protocol):
    """A server, here or on Ray."""

    def run_round(self, number: int) -> RoundRecord:
        """Run one round."""

    def recover(self) -> str:
        """After a loss: start anew with what is left, and say what was lost."""


def simulate(config: Config, screen: Screen | None = None) -> Run:
    """Run `config` to its end; bad input is told before anything is written."""
    config = resolve(config)
    return _carry_out(config, _run_folder(config), None, screen or Screen())


def resume(path: str | Path, overrides: Sequence[str] = (), screen: Screen | None = None) -> Run:
    """Go on with the run in the folder `path`, to the same bits.

    Overrides may change how it is carried out (`ray`, `federation`, ...) and give it more rounds.
    """
    screen = screen or Screen()
    run = load(path)
    config = load_config(run.config, overrides)
    refuse_changes(run.config, config)
    if config.rounds < run.config.rounds:
        raise InputError(f"rounds={config.rounds}: a run of {run.config.rounds} rounds can only be given more")
    config = resolve(config)
    storage = Storage(path)
    checkpoints = Checkpoints(storage, config)
    begun = checkpoints.find()
    written = check_tables(storage, begun, config.method.name, config.seed)
    if written >= config.rounds and config.rounds == run.config.rounds:
        screen.say(f"all {config.rounds} rounds are there; raise them with rounds=...")
        screen.summarise(run)
        return run
    screen.say(f"going on after round {begun} of {config.rounds}")
    return _carry_out(config, storage, checkpoints, screen)


def _carry_out(config: Config, storage: Storage, checkpoints: Checkpoints | None, screen: Screen) -> Run:
    """Run all rounds, or those after the checkpoint that was found.

    Data load and the model is built in a thread of their own, while Ray and the actors start.
    """
    if config.federation == "ray":
        import ray  # noqa: F401 - before the loader's imports, or the two would hold each other up
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(prepare, config)
        # Signals are taken over once Ray is there, which has handlers of its own.
        with _open_server(config, loading.result, screen) as server, stopping() as stop:
            config = loading.result().config
            screen.say(f"training: {config.training}")
            if (memory := loading.result().gpu_memory) is not None:
                screen.say(str(memory))
            if checkpoints is None:
                storage.create()
            with storage.locked():
                resumed = checkpoints.round if checkpoints else None
                checkpoints = Checkpoints(storage, config, loading.result(), found=checkpoints)
                checkpoints.bring_back(server)
                storage.write("config.yaml", f"# rayfl {__version__}\n{config.to_yaml()}".encode())
                with RunWriter(storage, storage.name, config.method.name, config.seed, resume_after=resumed) as writer:
                    try:
                        _run_rounds(config, server, checkpoints, writer, screen, stop)
                    except Stopped as stopped:
                        raise Stopped(stopped.number, f"stopped; {_resumable(storage, checkpoints)}") from None
                    except LostError as error:
                        raise RayflError(f"{error}; {_resumable(storage, checkpoints)}") from None
                    except OSError as error:
                        raise RayflError(
                            f"{storage.path} cannot be written to: {error.strerror or error}; mend that, then:"
                            f" {_resumable(storage, checkpoints)}"
                        ) from None
    run = load(storage.path)
    screen.summarise(run)
    return run


def _run_rounds(
    config: Config, server: RunsRounds, checkpoints: Checkpoints, writer: RunWriter, screen: Screen, stop: Stop
) -> None:
    """Run round after round; after a loss, go back to the last checkpoint, and write no row twice."""
    number = checkpoints.round + 1
    written = checkpoints.round
    losses = 0  # since the last new round
    recoveries: list[str] = []
    lost: LostError | None = None
    with screen.rounds(config.rounds, done=written):
        while number <= config.rounds:
            try:
                if lost is not None:
                    what = server.recover()
                    checkpoints.bring_back(server)
                    number, lost = checkpoints.round + 1, None
                    recoveries.append(what)
                    screen.say(f"{what}; from round {number}")
                record = server.run_round(number)
                if number > written:
                    extras = {**record.extras, **({"recoveries": recoveries} if recoveries else {})}
                    writer.write_round(number, record.summary, record.clients, record.clusters, extras)
                    screen.show_round(record)
                    written, losses, recoveries = number, 0, []
                if checkpoints.is_due(number) or (stop.asked is not None and number < config.rounds):
                    writer.flush()
                    checkpoints.write(server)
                number += 1
                if stop.asked is not None and number <= config.rounds:
                    raise Stopped(stop.asked)
            except LostError as error:
                lost = error
                losses += 1
                screen.warn(f"round {number}: {error}")
                if losses >= MOST_LOSSES:
                    raise LostError(f"round {number} was lost {losses} times in a row, last by {error}") from None


def _resumable(storage: Storage, checkpoints: Checkpoints) -> str:
    return f"go on after round {checkpoints.round} with: rayfl resume {storage.path}"


@contextmanager
def open_server(prepared: Prepared, screen: Screen) -> Iterator[RunsRounds]:
    """Start the federation that the config asks for, with a server on it; stop it in the end."""
    with _open_server(prepared.config, lambda: prepared, screen) as server:
        yield server


@contextmanager
def _open_server(config: Config, prepared: Callable[[], Prepared], screen: Screen) -> Iterator[RunsRounds]:
    """Start what needs no data at once, and call `prepared` for the data when they are needed."""
    if config.federation == "serial":
        from rayfl.federation.serial import SerialFederation
        from rayfl.federation.worker import Worker

        ready = prepared()
        fed = SerialFederation(ready.facts, Worker(ready.config, ready.dataset, ready.partition))
        try:
            yield Server(config, fed, ready.partition.true_cluster)
        finally:
            fed.close()
        return
    # Ray takes a second to import: only those who use it pay for it.
    from rayfl.federation.ray_cluster import advice, connected
    from rayfl.federation.ray_server import ray_server

    for warning in advice(config.ray):
        screen.warn(warning)
    screen.say("starting Ray and the client actors ...")
    with connected(config.ray), ray_server(config, prepared) as server:
        screen.say(server.describe())
        yield server


def _run_folder(config: Config) -> Storage:
    """Return where the run will write, after making sure that it can and that nothing is there yet."""
    base = Storage(config.output.dir)
    base.check()
    if config.name is not None:
        if base.exists(config.name):
            raise InputError(
                f"{base.folder(config.name).path} is there already, and results are never overwritten:"
                " choose another name or output.dir, or remove the folder"
            )
        return base.folder(config.name)
    method = config.method.name.rpartition(":")[2]
    stem = f"{config.data.source}-{method}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    while base.exists(stem):
        stem = f"{stem}-{os.getpid()}"
    return base.folder(stem)
