"""Partitioners of flwr-datasets as kinds of partition: the clients that the library itself would make."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfl.config import load_config, partition_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.errors import InputError
from rayfl.results import Run

partitioners = pytest.importorskip(
    "flwr_datasets.partitioner", reason="the extra rayfl[flwr-datasets] is not installed"
)

import datasets  # noqa: E402  (it comes with flwr-datasets)

ROWS = 600


def data(targets: Any = "class") -> Dataset:
    """Samples of five classes and twelve owners, a quarter of them for testing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, ROWS)
    return Dataset(
        inputs=np.zeros((ROWS, 2), np.float32),
        labels=labels.astype(np.uint8) if targets == "class" else rng.normal(size=ROWS).astype(np.float32),
        classes=5 if targets == "class" else 1,
        kind="vector",
        is_test=np.arange(ROWS) % 4 == 3,
        shift=np.zeros(2, np.float32),
        scale=np.ones(2, np.float32),
        owner=rng.integers(0, 12, ROWS).astype(np.int32),
        owner_names=tuple(f"owner {i:02}" for i in range(12)),
        targets=targets,
    )


def made(name: str, seed: int = 0, dataset: Dataset | None = None, **keys: Any) -> Partition:
    config = partition_config(kind=f"flwr_datasets:{name}", **keys)
    return make_partition(config, dataset or data(), seed)


def fault(name: str, **keys: Any) -> str:
    with pytest.raises(InputError) as told:
        made(name, **keys)
    (line,) = told.value.lines
    assert line.startswith("partition.")
    return line


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("IidPartitioner", {"clients": 7}),
    ("LinearPartitioner", {"clients": 7}),
    ("DirichletPartitioner", {"clients": 7, "alpha": 0.5, "min_partition_size": 4}),
    ("InnerDirichletPartitioner", {"partition_sizes": [100, 200, 150], "alpha": 0.5}),
    ("PathologicalPartitioner", {"clients": 7, "num_classes_per_partition": 2}),
    ("ShardPartitioner", {"clients": 7, "num_shards_per_partition": 2}),
    ("SizePartitioner", {"partition_sizes": [100, 200, 150]}),
    ("NaturalIdPartitioner", {}),
    ("GroupedNaturalIdPartitioner", {"group_size": 3}),
]


@pytest.mark.parametrize(("name", "keys"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("test", [0.2, "official"])
def test_no_sample_is_held_twice_and_nobody_is_empty(name: str, keys: dict[str, Any], test: Any) -> None:
    partition = made(name, test=test, validation=0.1, **keys)
    held = np.concatenate([partition.train, partition.validation, partition.test])
    assert len(np.unique(held)) == len(held) <= ROWS
    assert partition.n_train.min() >= 1 and partition.n_test.min() >= 1
    assert partition.clients == keys.get("clients", partition.clients)
    if test == "official":
        assert data().is_test[partition.test].all() and not data().is_test[partition.train].any()
    again = made(name, test=test, validation=0.1, **keys)
    assert all(
        np.array_equal(getattr(again, part), getattr(partition, part)) for part in ("train", "test", "validation")
    )


def test_the_clients_are_those_that_the_library_makes_with_this_seed() -> None:
    dataset = data()
    train = np.flatnonzero(~dataset.is_test)
    own = partitioners.DirichletPartitioner(7, "label", 0.5, min_partition_size=4, seed=11)
    own.dataset = datasets.Dataset.from_dict({"label": dataset.labels[train].astype(int), "row": train})
    expected = [sorted(own.load_partition(number)["row"]) for number in range(7)]
    keys = {"clients": 7, "alpha": 0.5, "min_partition_size": 4, "test": "official"}
    by_run = made("DirichletPartitioner", seed=11, **keys)
    by_key = load_config({"seed": 3, "partition": {"kind": "flwr_datasets:DirichletPartitioner", "seed": 11, **keys}})
    for partition in (by_run, make_partition(by_key.partition, dataset, by_key.partition_seed)):
        assert [partition.train_of(client).tolist() for client in range(7)] == expected
    other = made("DirichletPartitioner", seed=12, **keys)
    assert [other.train_of(client).tolist() for client in range(7)] != expected


def test_the_import_path_is_a_name_of_the_same_kind() -> None:
    config = partition_config(kind="flwr_datasets.partitioner:IidPartitioner", clients=7)
    assert np.array_equal(make_partition(config, data(), 0).train, made("IidPartitioner", clients=7).train)


def test_owners_are_natural_clients_and_keep_their_names() -> None:
    dataset = data()
    partition = made("NaturalIdPartitioner")
    assert partition.client_names == dataset.owner_names and dataset.owner is not None
    for client in range(12):
        assert (dataset.owner[partition.train_of(client)] == client).all()
    assert made("GroupedNaturalIdPartitioner", group_size=3).client_names is None
    assert made("IidPartitioner", clients=3).client_names is None


def test_numbers_are_partitioned_by_their_value() -> None:
    dataset = data("number")
    partition = made("ContinuousPartitioner", dataset=dataset, clients=3, strictness=1.0)
    bounds = [
        (dataset.labels[partition.train_of(i)].min(), dataset.labels[partition.train_of(i)].max()) for i in range(3)
    ]
    assert bounds[0][1] <= bounds[1][0] and bounds[1][1] <= bounds[2][0]


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("DirichletPartitionr", {}, "has no partitioner 'DirichletPartitionr' (did you mean 'DirichletPartitioner'?)"),
        ("DirichletPartitioner", {"clients": 3}, "partition.alpha is missing: DirichletPartitioner needs it"),
        ("IidPartitioner", {}, "partition.clients is missing: IidPartitioner needs it"),
        ("IidPartitioner", {"clients": 3, "alpha": 1.0}, "IidPartitioner has no option 'alpha'; it has num_partitions"),
        ("IidPartitioner", {"clients": 3, "num_partitions": 4}, "is called partition.clients here"),
        ("DirichletPartitioner", {"clients": 3, "alpha": -1.0}, "cannot be made: ValueError: "),
        (
            "PathologicalPartitioner",
            {"clients": 3, "num_classes_per_partition": 2, "partition_by": "writer"},
            "partition.partition_by=writer: there is no such column here: use label or client",
        ),
        ("VerticalEvenPartitioner", {"clients": 2}, "does not give each sample to one client: use a partitioner that"),
        ("SizePartitioner", {"partition_sizes": [1, 3]}, "gives client 0 1 samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_are_told_in_one_line(name: str, keys: dict[str, Any], told: str) -> None:
    assert told in fault(name, **keys)


def test_owners_that_the_data_do_not_name_are_told() -> None:
    nobody = replace(data(), owner=None, owner_names=None)
    assert "name the column of the clients in data.client" in fault("NaturalIdPartitioner", dataset=nobody)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    told = fault("IidPartitioner", clients=2)
    assert told.endswith("IidPartitioner needs the package flwr-datasets: install rayfl[flwr-datasets]")


def test_a_run_with_a_partitioner_reads_back(simulate_quietly: Callable[..., Run]) -> None:
    keys = ["federation=serial", "model.name=mlp", "method.name=fedavg", "rounds=1", "local.steps=1"]
    keys += ["partition.kind=flwr_datasets:PathologicalPartitioner", "partition.clients=6"]
    run = simulate_quietly(*keys, "partition.num_classes_per_partition=2")
    assert run.clients.client.nunique() == 6 and load_config(run.config.to_tree()) == run.config
