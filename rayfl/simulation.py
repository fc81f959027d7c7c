"""One run from config to Parquet: check everything, start the federation, stream what each round gives."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from rayfl.config import Config
from rayfl.errors import InputError
from rayfl.preparation import Prepared, prepare, resolve
from rayfl.results import Run, RunWriter, Storage, load
from rayfl.screen import Screen
from rayfl.server import RoundRecord, Server
from rayfl.version import __version__


class RunsRounds(Protocol):
    """A server, here or on Ray."""

    def run_round(self, number: int) -> RoundRecord:
        """Run one round."""


def simulate(config: Config, screen: Screen | None = None) -> Run:
    """Run `config` to its end; bad input is told before anything is written.

    Data load and the model is built in a thread of their own, while Ray and the actors start.
    """
    screen = screen or Screen()
    config = resolve(config)
    storage = _run_folder(config)
    if config.federation == "ray":
        import ray  # noqa: F401 - before the loader's imports, or the two would hold each other up
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(prepare, config)
        with _open_server(config, loading.result, screen) as server:
            config = loading.result().config
            screen.say(f"training: {config.training}")
            storage.create()
            storage.write("config.yaml", f"# rayfl {__version__}\n{config.to_yaml()}".encode())
            name = storage.path.rpartition("/")[2]
            with (
                RunWriter(storage, name, config.method.name, config.seed) as writer,
                screen.rounds(config.rounds),
            ):
                for number in range(1, config.rounds + 1):
                    record = server.run_round(number)
                    writer.write_round(number, record.summary, record.clients, record.clusters, record.extras)
                    screen.show_round(record)
    run = load(storage.path)
    screen.summarise(run)
    return run


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
    from rayfl.federation.ray_federation import ray_server

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
