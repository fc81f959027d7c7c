"""Partitioners of flwr-datasets by class name, such as `partition.kind: flwr_datasets:DirichletPartitioner`."""

import inspect
from typing import Any

import numpy as np
from pydantic import ConfigDict

from rayfl.config import Section
from rayfl.data.dataset import Dataset
from rayfl.data.partition.kind import PartitionKind, Streams
from rayfl.data.partition.splits import Dealt, Splits
from rayfl.errors import InputError, closest
from rayfl.own_code import reason

_PACKAGE = "flwr_datasets"
#: The columns that a partitioner sees; the last is the number of each sample.
_LABEL, _CLIENT, _SAMPLE = "label", "client", "sample"


def is_flwr(name: str) -> bool:
    """Whether partition.kind names a partitioner of flwr-datasets.

    >>> is_flwr("flwr_datasets:IidPartitioner"), is_flwr("flwr_datasets.partitioner:IidPartitioner"), is_flwr("iid")
    (True, True, False)
    """
    return name.partition(":")[0] in (_PACKAGE, f"{_PACKAGE}.partitioner")


class FlwrPartition(PartitionKind):
    """Clients are the partitions that a partitioner makes of the pool; splits come afterwards, as with other kinds.

    The partitioner's keyword arguments are keys of `partition`: partition.clients is its num_partitions, partition.seed
    its seed, and partition_by is label, or client for the names in data.client.
    """

    class Options(Section):
        """Whatever the partitioner takes."""

        model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    _seed: int
    _names: tuple[str, ...] | None = None

    def client_names(self) -> tuple[str, ...] | None:
        """Return the owners' names, where each client is one owner."""
        return self._names

    def deal(self, dataset: Dataset, splits: Splits, streams: Streams) -> Dealt:
        """Deal by `assign`, with the seed of the partition."""
        self._seed = streams.seed
        return super().deal(dataset, splits, streams)

    def assign(self, dataset: Dataset, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the number of the partition that each sample is in."""
        kind = self.config.kind
        partitioner_class = _partitioner_class(kind)
        columns = _columns(dataset, pool)
        arguments = self._arguments(partitioner_class, columns)
        import datasets

        try:
            partitioner = partitioner_class(**arguments)
            partitioner.dataset = datasets.Dataset.from_dict(columns)
            parts = [_samples(partitioner.load_partition(number)) for number in range(partitioner.num_partitions)]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"partition.kind={kind} cannot be made: {reason(error)}: change its options") from error
        client = np.full(len(pool), -1)
        for number, samples in enumerate(parts):
            if samples is None or (client[samples] >= 0).any():
                raise InputError(
                    f"partition.kind={kind} does not give each sample to one client: use a partitioner that splits rows"
                )
            client[samples] = number
        self._names = _owners_of_clients(dataset, pool, client)
        return client

    def _arguments(self, partitioner: type, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments: those of the config, and those that follow from it."""
        given = dict(self.options.model_extra or {})
        if "distribution_array" in given:
            given["distribution_array"] = np.asarray(given["distribution_array"])
        known = inspect.signature(partitioner).parameters
        for name in given:
            if name == "num_partitions":
                raise InputError(f"partition.num_partitions={given[name]} is called partition.clients here: use that")
            if name not in known:
                raise InputError(
                    f"partition.{name}: {partitioner.__name__} has no option '{name}'{closest(name, list(known))}; it"
                    f" has {', '.join(known)}"
                )
        settled = {
            "num_partitions": self.config.clients,
            "seed": self._seed,
            "partition_by": _CLIENT if "NaturalId" in partitioner.__name__ else _LABEL,
        }
        arguments = {name: value for name, value in settled.items() if name in known and value is not None} | given
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in arguments:
                key = "clients" if name == "num_partitions" else name
                raise InputError(f"partition.{key} is missing: {partitioner.__name__} needs it")
        by = arguments.get("partition_by", _LABEL)
        if by not in columns or by == _SAMPLE:
            cure = "name the column of the clients in data.client" if by == _CLIENT else f"use {_LABEL} or {_CLIENT}"
            raise InputError(f"partition.partition_by={by}: there is no such column here: {cure}")
        return arguments


def _partitioner_class(kind: str) -> type:
    try:
        from flwr_datasets import partitioner
    except ImportError:
        raise InputError(
            f"partition.kind={kind} needs the package flwr-datasets: install rayfl[flwr-datasets]"
        ) from None
    name = kind.partition(":")[2]
    names = sorted(set(partitioner.__all__) - {"Partitioner"})
    if name not in names:
        raise InputError(
            f"partition.kind={kind}: flwr-datasets has no partitioner '{name}'{closest(name, names)}; it has"
            f" {', '.join(names)}"
        )
    found: type = getattr(partitioner, name)
    return found


def _columns(dataset: Dataset, pool: np.ndarray) -> dict[str, Any]:
    numbers = dataset.labels[pool]
    columns: dict[str, Any] = {
        _SAMPLE: np.arange(len(pool)),
        _LABEL: numbers.astype(np.int64) if dataset.targets == "class" else numbers,
    }
    if dataset.owner is not None and dataset.owner_names is not None:
        columns[_CLIENT] = [dataset.owner_names[owner] for owner in dataset.owner[pool]]
    return columns


def _samples(part: Any) -> np.ndarray | None:
    """Return the numbers of the samples in a partition; None if it has no such column."""
    if _SAMPLE not in part.column_names:
        return None
    return np.asarray(part.with_format("numpy")[:][_SAMPLE], dtype=np.int64)


def _owners_of_clients(dataset: Dataset, pool: np.ndarray, client: np.ndarray) -> tuple[str, ...] | None:
    """Return the owner's name of each client, if each client has one owner and each owner one client, else None."""
    if dataset.owner is None or dataset.owner_names is None:
        return None
    pairs = np.unique(np.stack([client, dataset.owner[pool]])[:, client >= 0], axis=1)
    clients, owners = pairs
    if len(np.unique(clients)) < len(clients) or len(np.unique(owners)) < len(owners):
        return None
    return tuple(dataset.owner_names[owner] for owner in owners)
