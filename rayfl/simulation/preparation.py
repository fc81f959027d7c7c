"""Loads and checks what a config names, before a federation starts: options, data, partition, model, memory."""

import os
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.client.batches import largest_batch, samples_seen
from rayfl.client.seen import MOST_BYTES, samples_kept
from rayfl.config import Config, Training
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.partition.digests import data_arrays, data_digest, dealt_arrays, digest, partition_digest
from rayfl.errors import InputError
from rayfl.federation.facts import Facts, Recipe
from rayfl.federation.presence import Presence
from rayfl.host_memory import (
    Need,
    batches_need,
    clients_need,
    memory_here,
    network_need,
    refuse_excess,
    seen_need,
    server_need,
)
from rayfl.methods import check_method, find_method, method_notes, server_models, settled_options
from rayfl.own_code import check_objects
from rayfl.results import Fingerprints
from rayfl.simulation.presence import cohort_sizes, presence_of

if TYPE_CHECKING:
    from rayfl.client.memory import GpuMemory
    from rayfl.models import FlatModel


#: The share of samples that is public if a method needs public samples and no test split of the source is free for it.
PUBLIC_SHARE = 0.1


@dataclass(frozen=True)
class Prepared:
    """A config that has passed all checks, with everything that was loaded for them."""

    config: Config
    dataset: Dataset
    partition: Partition
    facts: Facts

    @property
    def notes(self) -> list[str]:
        """Warnings to show before the run: about the data, and about the method with these clients and rounds."""
        presence = presence_of(self.config, self.partition.clients, self.partition.true_cluster)
        cohort = cohort_sizes(self.config, presence)[1]
        return [*self.dataset.notes, *method_notes(self.config.method, self.facts, cohort, self.config.rounds)]

    @cached_property
    def gpu_memory(self) -> "GpuMemory | None":
        """The memory that the run needs on one GPU; None if it uses no GPU."""
        from rayfl.client.memory import gpu_memory

        share, local = self.config.ray.gpu_share, self.config.local
        if not share or self.config.federation != "ray":
            return None
        sample, _ = self.dataset.batch(self.partition.train_of(0)[:1], self.partition.transform_for(0))
        together = self.config.training == "vectorised"
        actors = max(1, int(1 / share + 1e-9))
        return gpu_memory(self.facts.recipe.build(), sample, local.batch_size, local.momentum > 0, together, actors)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Digests that identify the data, the partition and the initial model."""
        return Fingerprints(
            data=data_digest(self.dataset),
            partition=partition_digest(self._first_partition),
            model=digest(self.facts.initial),
        )

    @property
    def _first_partition(self) -> Partition:
        """The partition without the changes that more rounds add, so that more rounds do not change the fingerprint."""
        config = self.config
        if config.partition.lasting(config.rounds) == config.partition:
            return self.partition
        return make_partition(config.partition, self.dataset, config.partition_seed)

    @cached_property
    def dealt_fingerprint(self) -> str:
        """One digest of data and partition, without planted clusters, as checkpoints have held it since rayfl 0.1.

        If there is a trace of which clients are available, it is included.
        """
        trace = None if self.facts.presence is None else self.facts.presence.trace
        available = [] if trace is None else [trace.clients, trace.offsets]
        return digest(*data_arrays(self.dataset), *dealt_arrays(self.partition), *available)


def resolve(config: Config) -> Config:
    """Fill in the method's own options and refuse wrong ones; this is fast, so it is done before anything starts."""
    check_objects(config)
    options = settled_options(config.method, config.rounds)
    method = {"name": config.method.name, **options.model_dump(exclude_none=True)}
    return Config.model_validate(config.model_dump(exclude_none=True) | {"method": method})


def settle_splits(config: Config, dataset: Dataset) -> Config:
    """Fill in partition.public and partition.validation if the config leaves them to the method and the data source.

    The saved config must hold the values that the run used.
    """
    found: dict[str, Any] = {}
    if config.partition.kind == "file":  # the file already says what is public and what is for validation
        return config
    if find_method(config.method.name).needs_public:
        if config.partition.public == "none":
            raise InputError(
                f"partition.public=none: method.name={config.method.name} needs public samples: use"
                f" partition.public=test, or a share such as partition.public={PUBLIC_SHARE}"
            )
        if config.partition.public is None:
            split = dataset.is_test.any() and not dataset.is_test.all() and config.partition.test != "official"
            found["public"] = "test" if split else PUBLIC_SHARE
    if config.partition.validation is None and dataset.is_validation is not None and dataset.is_validation.any():
        found["validation"] = "official"
    return config.model_copy(update={"partition": config.partition.model_copy(update=found)})


def prepare(config: Config) -> Prepared:
    """Load and check everything that needs no Ray cluster: options, data, partition, model."""
    from rayfl.client.choice import cpu_capability, faster_together, try_together
    from rayfl.client.optimisers import optimiser_of
    from rayfl.client.schedules import check_schedule, settled_schedule
    from rayfl.client.task import find_task
    from rayfl.data.sources import load_dataset  # imports pandas, and scikit-learn for the digits
    from rayfl.models.zoo import large_parameters

    config = resolve(config)
    task = find_task(config.task)
    config = config.model_copy(update={"local": settled_schedule(config.local, config.rounds)})
    check_schedule(config.local)
    optimiser_of(config.local)
    if task.targets == "number" and find_method(config.method.name).needs_classes:
        raise InputError(
            f"method.name={config.method.name} compares class probabilities, and task={config.task} has none: use"
            " another method, or task=classification"
        )
    _check_state_folder(config)
    dataset = load_dataset(config.data, config.partition_seed, config.partition.owner_column, task.targets)
    config = settle_splits(config, dataset)
    if config.local.augment and dataset.kind != "image":
        raise InputError(
            f"local.augment={config.local.augment} is for images, and data.source={config.data.source} has none:"
            " remove it"
        )
    partition = make_partition(config.partition.lasting(config.rounds), dataset, config.partition_seed)
    if find_method(config.method.name).needs_public and not len(partition.public):
        raise InputError(
            f"method.name={config.method.name} needs public samples, and the partition has none: save one with"
            " partition.public=test or a share"
        )
    if config.data.normalise == "standard":
        dataset = partition.normalised(dataset)
    count = config.participation.count
    if count is not None and count > partition.clients:
        raise InputError(f"participation.count={count} is more than the {partition.clients} clients there are")
    presence = presence_of(config, partition.clients, partition.true_cluster)
    smallest, largest = cohort_sizes(config, presence)
    check_method(config.method, len(presence.there(1)), smallest, config.rounds)
    check_method(config.method, partition.clients, largest, config.rounds)
    config = config.model_copy(update={"cpu_capability": config.cpu_capability or cpu_capability()})
    parameters = large_parameters(config.model, dataset.input_shape, dataset.classes, dataset.vocabulary)
    if parameters is not None:
        refuse_excess(_needs(config, dataset, partition, parameters), memory_here())
    model = _recipe(config, dataset).build()
    refuse_excess(_needs(config, dataset, partition, model.layout.size, model), memory_here())
    on_gpus = config.federation == "ray" and config.ray.gpu_share > 0
    together = config.training == "vectorised"
    if config.training == "auto":
        device, size = "cuda" if on_gpus else "cpu", largest_batch(partition.n_train, config.local)
        together = faster_together(model, size, device, str(config.cpu_capability))
    prepared = _settled(config, "vectorised" if together else "loop", dataset, partition, presence, model)
    if together and not on_gpus:  # on GPUs, the actors try it
        reason = try_together(model, dataset, partition.n_train, config.local, task)
        prepared = after_trying(prepared, config.training, reason)
    return prepared


def task_metrics(name: str) -> tuple[str, ...]:
    """Return the names of a task's metrics, in their order."""
    from rayfl.client.task import find_task  # torch

    return tuple(find_task(name).metrics)


def after_trying(prepared: Prepared, asked: Training, reason: str | None) -> Prepared:
    """Settle the trainer after trying the vectorised one; `reason` says why it does not work, None if it does.

    If the config `asked` for the vectorised trainer by name, raise an error instead of using the loop silently.
    """
    if reason is None:
        return prepared
    if asked == "vectorised":
        name = prepared.config.model.name
        raise InputError(f"training=vectorised does not work with model.name={name}: {reason}; use training=loop")
    return _settled(prepared.config, "loop", prepared.dataset, prepared.partition, prepared.facts.presence)


def _settled(
    config: Config,
    training: Training,
    dataset: Dataset,
    partition: Partition,
    presence: Presence | None,
    model: "FlatModel | None" = None,
) -> Prepared:
    """Return the prepared run with this trainer; `model` is the network, if it is already built."""
    from rayfl.models.zoo import wants_channels_last

    config = config.model_copy(update={"training": training})
    recipe = _recipe(config, dataset)
    if model is None or wants_channels_last(config.model, training):
        recipe = replace(recipe, channels_last=wants_channels_last(config.model, training))
        model = recipe.build()
    cost = samples_seen(partition.n_train, config.local)
    facts = Facts(
        partition.n_train,
        partition.n_test,
        cost,
        model.layout,
        model.numpy(),
        partition.public,
        recipe,
        n_validation=partition.n_validation,
        local=config.local,
        metrics=task_metrics(config.task),
        presence=presence,
    )
    return Prepared(config, dataset, partition, facts)


def _recipe(config: Config, dataset: Dataset) -> Recipe:
    return Recipe(config.model, dataset.input_shape, dataset.classes, dataset.vocabulary, config.seed)


def _needs(
    config: Config, dataset: Dataset, partition: Partition, parameters: int, model: "FlatModel | None" = None
) -> list[Need]:
    """Return the memory that the run needs on this machine, as far as it is known; actors may be on other machines."""
    here = runs_here(config)
    trainers = (config.ray.actors or 1 if config.federation == "ray" else 1) if here else 0
    arrays = [dataset.inputs, dataset.labels]
    arrays += [partition.train, partition.test, partition.validation, partition.public]
    needs = [
        Need(f"{len(dataset):,} samples", sum(array.nbytes for array in arrays), "data.limit"),
        network_need(parameters, 1 + trainers if config.federation == "ray" else 1),
    ]
    if not here:
        return needs
    needs += [
        server_need(parameters, server_models(config.method, partition.clients)),
        clients_need(
            parameters,
            config.cohort_size(partition.clients),
            config.state.memory_mb * 2**20,
            config.local.keep_momentum,
        ),
        batches_need(int(samples_seen(partition.n_train, config.local).max()), trainers),
    ]
    kept = samples_kept(partition, config.cohort_size(partition.clients))
    if kept:
        needs.append(seen_need(kept, dataset.inputs[0].nbytes, MOST_BYTES, trainers))
    if model is not None and not (config.federation == "ray" and config.ray.gpu_share):
        from rayfl.client.memory import gpu_memory

        sample, _ = dataset.batch(partition.train_of(0)[:1], partition.transform_for(0))
        batch = largest_batch(partition.n_train, config.local)
        # Half of the estimate for a GPU: a CPU frees a layer's feature map as soon as the map's gradient is computed.
        computing = gpu_memory(model, sample, batch, config.local.momentum > 0, False, 1).computing // 2
        needs.append(Need(f"training on batches of {batch:,}", computing * trainers, "local.batch_size"))
    return needs


def _check_state_folder(config: Config) -> None:
    """Refuse a state.dir that cannot be written to, if actors run on this machine; other nodes cannot be checked."""
    if config.state.dir is None or not runs_here(config):
        return
    folder = Path(config.state.dir)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"state.dir={config.state.dir} cannot be written to: {error.strerror}; make the folder, or name another"
        ) from None


def runs_here(config: Config) -> bool:
    """Whether all of the run is on this machine, as far as the config and the environment say."""
    if config.federation == "serial":
        return True
    return config.ray.address in (None, "local") and not os.environ.get("RAY_ADDRESS")
