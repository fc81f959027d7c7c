"""One run from config to Parquet: check everything, start the federation, stream what each round gives."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np

from rayfl.config import Config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.sources import load_dataset
from rayfl.errors import InputError
from rayfl.federation.interface import Facts, Recipe
from rayfl.federation.serial import SerialFederation
from rayfl.federation.worker import Worker
from rayfl.methods import check_method, method_options
from rayfl.results import Run, RunWriter, Storage, load
from rayfl.screen import Screen
from rayfl.server import RoundRecord, Server
from rayfl.version import __version__


@dataclass(frozen=True)
class Prepared:
    """A config that has been found possible, with everything that was loaded to find that out."""

    config: Config
    dataset: Dataset
    partition: Partition
    facts: Facts


class RunsRounds(Protocol):
    """A server, here or on Ray."""

    def run_round(self, number: int) -> RoundRecord:
        """Run one round."""


def simulate(config: Config, screen: Screen | None = None) -> Run:
    """Run `config` to its end; bad input is told before anything is started or written."""
    screen = screen or Screen()
    prepared = prepare(config)
    storage = _run_folder(prepared.config)
    with open_server(prepared, screen) as server:
        storage.create()
        storage.write("config.yaml", f"# rayfl {__version__}\n{prepared.config.to_yaml()}".encode())
        name, method, seed = (
            storage.path.rpartition("/")[2],
            prepared.config.method.name,
            prepared.config.seed,
        )
        with RunWriter(storage, name, method, seed) as writer, screen.rounds(prepared.config.rounds):
            for number in range(1, prepared.config.rounds + 1):
                record = server.run_round(number)
                writer.write_round(number, record.summary, record.clients, record.clusters, record.extras)
                screen.show_round(record)
    run = load(storage.path)
    screen.summarise(run)
    return run


def prepare(config: Config) -> Prepared:
    """Load and check all that needs no cluster: options, data, partition, model."""
    options = method_options(config.method)
    method = {"name": config.method.name, **options.model_dump(exclude_none=True)}
    config = Config.model_validate(config.model_dump(exclude_none=True) | {"method": method})
    dataset = load_dataset(config.data, config.seed, config.partition.column)
    partition = make_partition(config.partition, dataset, config.seed)
    dataset = partition.normalised(dataset)
    count = config.participation.count
    if count is not None and count > partition.clients:
        raise InputError(f"participation.count={count} is more than the {partition.clients} clients there are")
    check_method(config.method, partition.clients, config.cohort_size(partition.clients))
    recipe = Recipe(config.model, dataset.input_shape, dataset.classes, dataset.vocabulary, config.seed)
    model = recipe.build()
    public = np.flatnonzero(dataset.is_test) if dataset.is_test.any() else np.sort(partition.test)
    facts = Facts(partition.n_train, partition.n_test, model.layout, model.numpy(), public, recipe)
    return Prepared(config, dataset, partition, facts)


@contextmanager
def open_server(prepared: Prepared, screen: Screen) -> Iterator[RunsRounds]:
    """Start the federation that the config asks for, with a server on it; stop it in the end."""
    config = prepared.config
    if config.federation == "serial":
        worker = Worker(config, prepared.dataset, prepared.partition)
        fed = SerialFederation(prepared.facts, worker)
        try:
            yield Server(config, fed, prepared.partition.true_cluster)
        finally:
            fed.close()
        return
    # Ray takes a second to import: only those who use it pay for it.
    from rayfl.federation.ray_cluster import advice, connected
    from rayfl.federation.ray_federation import ray_server

    for warning in advice(config.ray):
        screen.warn(warning)
    screen.say("starting Ray and the client actors ...")
    with (
        connected(config.ray),
        ray_server(config, prepared.dataset, prepared.partition, prepared.facts) as server,
    ):
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
