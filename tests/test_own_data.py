"""Data and partitions of a user's own: functions, classes and Python objects in the place of names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import rayfl
from rayfl.config import data_config, load_config, partition_config
from rayfl.data import Dataset, PartitionKind, Transform, make_partition
from rayfl.data.sources import Data, load_dataset
from rayfl.errors import InputError, RayflError
from rayfl.given import given_objects
from rayfl.results import Run
from rayfl.simulation.preparation import prepare

SERIAL = ["federation=serial", "model.name=mlp", "method.name=fedavg", "rounds=2", "local.steps=2"]
EXTENDING = Path(__file__).parent / "extending"
OwnCode = Callable[[str, str], None]


@pytest.fixture
def extending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXTENDING))


def offered(value: Any, column: str | None = None, **keys: Any) -> Dataset:
    """The data set that `rayfl.run(data=value)` would learn from."""
    targets = keys.pop("targets", "class")
    with given_objects({"data": value}) as overrides:
        return load_dataset(data_config(**overrides["data"], **keys), 0, column, targets)


def refused(value: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as told:
        offered(value, **keys)
    (line,) = told.value.lines
    return line


# --- the examples of docs/extending.md


def test_an_own_source_with_named_clients_runs(extending: None, simulate_quietly: Callable[..., Run]) -> None:
    keys = ["data.source=own_source:moons", "data.client=town", "partition.kind=natural", "data.options.towns=4"]
    run = simulate_quietly(*SERIAL, *keys)
    assert run.clients.client.nunique() == 4 and run.rounds.accuracy.iloc[-1] > 0.3
    again = load_config(run.config.to_tree())
    assert again == run.config and again.data.options == {"towns": 4}
    partition = prepare(again).partition
    assert partition.client_names == ("town 0", "town 1", "town 2", "town 3")
    assert (partition.n_train + partition.n_test).tolist() == [60] * 4


def test_an_own_partition_runs_by_its_path_and_as_an_object(
    extending: None, simulate_quietly: Callable[..., Run], tmp_path: Path
) -> None:
    by_path = simulate_quietly(
        *SERIAL, "partition.kind=own_partition:Shards", "partition.clients=12", "partition.shards=1", "name=path"
    )
    from own_partition import Shards  # type: ignore[import-not-found]

    keys = {"federation": "serial", "rounds": 2, "method.name": "fedavg", "model.name": "mlp", "local.steps": 2}
    by_object = rayfl.run(
        partition=Shards(clients=12, shards=1), output={"dir": str(tmp_path)}, **{**keys, "name": "object"}
    )
    assert by_object.config.partition == by_path.config.partition
    assert by_object.rounds.accuracy.tolist() == by_path.rounds.accuracy.tolist()
    ready = prepare(by_path.config)
    labels = (ready.partition.label_counts(ready.dataset, "all") > 0).sum(1)
    assert labels.max() <= 3 and ready.partition.clients == 12  # a twelfth of ten sorted classes


def test_both_federations_give_the_same_bits_on_own_data_and_partitions(
    ray_session: None, extending: None, simulate_quietly: Callable[..., Run]
) -> None:
    keys = ["data.source=own_source:moons", "data.drop=[town]", "partition.kind=own_partition:Shards", "rounds=1"]
    runs = [
        simulate_quietly(*SERIAL, *keys, "partition.clients=4", "ray.actors=1", f"federation={kind}", f"name={kind}")
        for kind in ("serial", "ray")
    ]
    columns = ["client", "n_train", "accuracy", "loss"]
    assert runs[0].clients[columns].equals(runs[1].clients[columns])


def test_the_examples_are_short() -> None:
    for name in ("own_source.py", "own_partition.py"):
        assert len((EXTENDING / name).read_text().splitlines()) < 40


# --- Python objects as data


def numbered(n: int = 40, features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, features)), np.arange(n) % 4


def test_arrays_run_and_the_saved_config_knows_them_by_their_digest(tmp_path: Path) -> None:
    x, y = numbered()
    keys = {"federation": "serial", "model.name": "mlp", "method.name": "fedavg", "rounds": 1, "local.steps": 1}
    partition = {"kind": "iid", "clients": 4}
    run = rayfl.run(data=(x, y), partition=partition, output={"dir": str(tmp_path)}, **keys)
    assert run.clients.n_train.sum() == 32
    saved = load_config(run.config.to_tree())
    assert saved.data.source == "python" and saved == run.config
    with pytest.raises(InputError, match=r"came from a Python program \(digest \w+\), and none are given now"):
        prepare(saved)
    with given_objects({"data": (x, y + 1)}), pytest.raises(InputError, match="the data given now are others"):
        prepare(saved)
    with given_objects({"data": (x, y)}):  # as a resume does it
        assert prepare(saved).partition.n_train.sum() == 32


def test_all_forms_of_the_same_arrays_are_the_same_data() -> None:
    x, y = numbered()
    plain = offered((x, y))
    assert plain.kind == "vector" and plain.inputs.dtype == np.float32 and plain.classes == 4
    forms = [{"x": x, "y": y}, Data(x, y), (pd.DataFrame(x), pd.Series(y)), (torch.tensor(x), torch.tensor(y))]
    forms.append(TensorDataset(torch.tensor(x), torch.tensor(y)))
    for form in forms:
        other = offered(form)
        assert np.array_equal(other.inputs, plain.inputs) and np.array_equal(other.labels, plain.labels)


def test_masks_and_clients_of_arrays_are_splits_and_owners() -> None:
    x, y = numbered(8)
    names = ["b", "a"] * 4
    data = offered({"x": x, "y": y, "test": np.arange(8) > 5, "validation": np.arange(8) == 0, "client": names})
    assert np.flatnonzero(data.is_test).tolist() == [6, 7]
    assert data.is_validation is not None and np.flatnonzero(data.is_validation).tolist() == [0]
    assert data.owner is not None and data.owner.tolist() == [1, 0] * 4 and data.owner_names == ("a", "b")
    partition = make_partition(partition_config(kind="natural"), data, 0)
    assert partition.client_names == ("a", "b")


@pytest.mark.parametrize(
    ("shape", "channels_first", "expected"),
    [
        ((5, 6, 7), False, (1, 6, 7)),
        ((5, 6, 7, 3), False, (3, 6, 7)),
        ((5, 3, 6, 7), False, (3, 6, 7)),
        ((5, 3, 6, 4), False, (4, 3, 6)),
        ((5, 3, 6, 4), True, (3, 6, 4)),
    ],
)
def test_images_may_have_their_channels_at_either_end(
    shape: tuple[int, ...], channels_first: bool, expected: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    data = offered(Data(x, np.arange(5), channels_first=channels_first))
    assert data.kind == "image" and data.input_shape == expected and data.inputs.dtype == np.uint8
    # Pixel (row 1, column 2) of the last channel of sample 0.
    last = x[0, 1, 2] if len(shape) == 3 else x[0, -1, 1, 2] if expected[0] == shape[1] else x[0, 1, 2, -1]
    assert data.inputs[0, -1, 1, 2] == last


def test_images_of_a_torch_data_set_are_whole_pixels_again_if_they_were() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 4)).astype(np.uint8)
    labels = torch.arange(6) % 2
    data = offered(TensorDataset(torch.tensor(pixels).float() / 255, labels))
    assert np.array_equal(data.inputs, pixels) and data.inputs.dtype == np.uint8
    floats = offered(TensorDataset(torch.tensor(pixels) * 0.01, labels))
    assert floats.inputs.dtype == np.float32
    inputs, _ = floats.batch(np.arange(6), Transform(turns=1))
    assert float(inputs.mean()) == pytest.approx(0, abs=1e-5) and float(inputs.std(correction=0)) == pytest.approx(1)
    none = offered(TensorDataset(torch.tensor(pixels) * 0.01, labels), normalise="none").batch([0])[0]
    assert none[0, 0, 1, 2].item() == pytest.approx(pixels[0, 0, 1, 2] * 0.01)
    with pytest.raises(InputError, match="inversion needs pixels in whole numbers"):
        make_partition(partition_config(transform="inversion", clients=2), floats, 0)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([])


FRAME = {"a": [0.5, 1.5, 2.5, 3.5], "b": [1, 2, 3, 4], "flag": [True, False, True, False], "label": [0, 1, 0, 1]}


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame({**FRAME, **more})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((4, 2)), "data is a ndarray: give arrays (x, y)"),
        (3 + 2j, "data is a complex: give arrays"),
        (Stream(), "data: a data set that is only iterated over has no samples by number"),
        ([1, 2], "data: item 0 is a int, not a pair of sample and label"),
        ({"x": [[1.0]], "labels": [0]}, "data: there is no array 'labels'; allowed: x, y, test, validation, client"),
        ({"x": [[1.0]]}, "data has no array y"),
        (([[1.0], [2.0]], [0]), "data: y has 1 values for 2 samples"),
        (([["a"], ["b"]], [0, 1]), "data: x is of type <U1: it must hold numbers"),
        (([[1.0], [np.nan]], [0, 1]), "data: x: 1 samples have missing or infinite values, the first is sample 1"),
        ((np.zeros((2, 9, 9, 9)), [0, 1]), "data: x has shape (2, 9, 9, 9): images have at most 4 channels"),
        ({"x": [[1.0], [2.0]], "y": [0, 1], "test": [0, 1]}, "data: test is of type int64 and shape (2,)"),
        ((frame(), frame()), "data: y has shape (4, 4): it must have one label per row of x, 4"),
        (Data(frame(), y=[1]), "data: y goes with arrays"),
        (frame(city=["x", "y", "x", "z"]), "data: column 'city' holds text, not numbers: data.categories=[city] makes"),
        (frame(day=pd.Timestamp(0)), "data: column 'day' holds timestamp[ns], not numbers"),
        (frame(mix=[1, "a", None, 2.0]), "data: column 'mix' holds values of several kinds"),
        (Data(frame(), label="lable"), "data has no column 'lable' (did you mean 'label'?)"),
        (Data(frame(), drop=["c"]), "data has no column 'c': data.drop must be one of"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else type(value).__name__,
)
def test_faulty_objects_are_told_in_one_line_that_does_not_print_them(value: Any, told: str) -> None:
    line = refused(value)
    assert line.startswith(told), line
    assert len(line) < 400


def test_tables_take_numbers_truth_values_and_categories_in_a_known_order() -> None:
    size = pd.Categorical(["small", "large", "small", "mid"], categories=["small", "mid", "large"])
    table = frame(city=["b", "a", "c", "a"], size=size, id=["p", "q", "r", "s"])
    data = offered(Data(table, categories=["city"], drop=["id"]), normalise="none")
    assert data.inputs.tolist() == [
        [0.5, 1, 1, 0, 1, 0, 1, 0, 0],  # a, b, flag, cities a b c, sizes in the order of their categories
        [1.5, 2, 0, 1, 0, 0, 0, 0, 1],
        [2.5, 3, 1, 0, 0, 1, 1, 0, 0],
        [3.5, 4, 0, 1, 0, 0, 0, 1, 0],
    ]


def test_columns_of_a_parquet_file_are_encoded_dropped_or_told(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    frame(city=["b", "a", "b", "a"]).to_parquet(path)
    with pytest.raises(InputError, match=r"column 'city' holds text.*data\.drop=\[city\] leaves it out"):
        load_dataset(data_config(source="parquet", path=path), 0)
    shapes = [
        load_dataset(data_config(source="parquet", path=path, **keys), 0).input_shape
        for keys in ({"drop": ["city"]}, {"categories": ["city"]}, {"client": "city"})
    ]
    assert shapes == [(3,), (5,), (3,)]
    clients = load_dataset(data_config(source="parquet", path=path, client="city"), 0)
    assert clients.owner_names == ("a", "b")


def test_an_npz_file_may_hold_any_arrays(tmp_path: Path) -> None:
    x, y = numbered(8)
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.array(list("abababab")))
    data = load_dataset(data_config(source="npz", path=str(tmp_path / "a.npz")), 0)
    assert data.kind == "vector" and data.owner_names == ("a", "b") and len(data) == 8


# --- numbers as labels


def test_labels_may_be_numbers_and_iid_and_natural_clients_get_them() -> None:
    x, _ = numbered(60)
    y = x[:, 0] * 2 + 0.5
    value = {"x": x, "y": y, "client": np.arange(60) % 3}
    data = offered(value, targets="number")
    assert data.targets == "number" and data.classes == 1 and data.labels.dtype == np.float32
    _, labels = data.batch([3, 1])
    assert labels.dtype == torch.float32 and labels.tolist() == pytest.approx([y[3], y[1]], rel=1e-6)
    for keys in ({"kind": "iid", "clients": 5}, {"kind": "natural"}, {"kind": "iid", "clients": 4, "validation": 0.2}):
        partition = make_partition(partition_config(**keys), data, 0)
        dealt = np.concatenate([partition.train, partition.validation, partition.test])
        assert np.array_equal(np.sort(dealt), np.arange(60))
        assert partition.label_counts(data, "all").sum() == 60
        first = partition.test_of(0)
        assert not np.array_equal(first, np.arange(len(first)))  # drawn, not the first ones


@pytest.mark.parametrize("kind", ["dirichlet", "classes", "cluster_dirichlet", "cluster_classes"])
def test_kinds_that_deal_by_classes_refuse_numbers(kind: str) -> None:
    x, _ = numbered(60)
    data = offered((x, x[:, 0]), targets="number")
    with pytest.raises(InputError, match=rf"partition\.kind={kind} deals by classes, .* use partition\.kind=iid"):
        make_partition(partition_config(kind=kind), data, 0)


def test_numbers_where_classes_are_needed_and_the_reverse_are_told() -> None:
    x, y = numbered()
    assert "the label 0.5 is not a whole number" in refused((x, y + 0.5))
    assert "the label 'a' is not a number" in refused((x, np.array(["a", "b"] * 20)), targets="number")
    with pytest.raises(InputError, match=r"data\.source=digits has classes, and the task predicts numbers"):
        load_dataset(data_config(source="digits"), 0, targets="number")


# --- faults of users' own code

BROKEN = """
import sys
from rayfl.data import PartitionKind, Transform
import numpy as np

number = 3

def fails():
    raise RuntimeError("the cat ate it")

def leaves():
    sys.exit(0)

def nothing(a=1):
    return None

class Short(PartitionKind):
    def assign(self, dataset, pool, rng):
        return np.zeros(3, int)

class Poor(PartitionKind):
    def assign(self, dataset, pool, rng):
        client = np.zeros(len(pool), int)
        client[0] = 1
        return client

class Far(PartitionKind):
    def assign(self, dataset, pool, rng):
        return np.full(len(pool), 99)

class Raises(PartitionKind):
    def assign(self, dataset, pool, rng):
        raise RuntimeError("the dog ate it")

class Turned(PartitionKind):
    def assign(self, dataset, pool, rng):
        return rng.integers(0, 4, len(pool))

    def transforms(self, dataset, rng):
        return Transform(), Transform(turns=2)

    def clusters(self, clients):
        return np.arange(clients) % 2
"""


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["data.source=broken:fail"], r"module 'broken' has no function 'fail' \(did you mean 'fails'\?\)"),
        (["data.source=broken:number"], r"data\.source=broken:number is a int: it must be a function"),
        (["data.source=broken:nothing"], r"data\.source=broken:nothing is a NoneType: give arrays"),
        (["data.source=broken:nothing", "data.options.b=2"], r"do not fit .*unexpected keyword argument 'b'"),
        (["data.source=broken:fails"], r"(?s)data\.source=broken:fails failed:.*the cat ate it"),
        (["data.source=broken:leaves"], r"(?s)data\.source=broken:leaves failed:.*SystemExit"),
        (["partition.kind=broken:fails"], r"partition\.kind=broken:fails is not a subclass"),
        (["partition.kind=broken:Short"], r"assign gives an array of int64 of shape \(3,\)"),
        (["partition.kind=broken:Short", "partition.alpha=2"], r"there is no key 'alpha'; allowed: kind, clients"),
        (["partition.kind=broken:Poor"], r"gives client 1 1 samples: each of the 2 clients needs at least 2"),
        (["partition.kind=broken:Far", "partition.clients=5"], r"to client 99: partition\.clients=5"),
        (["partition.kind=broken:Raises"], r"(?s)partition\.kind=broken:Raises failed:.*the dog ate it"),
    ],
)
def test_faults_of_own_code_say_where(own_code: OwnCode, keys: list[str], told: str) -> None:
    own_code("broken", BROKEN)
    with pytest.raises(RayflError, match=told):
        prepare(load_config(None, [*SERIAL, *keys]))


def test_an_own_kind_may_plant_clusters_with_transforms(own_code: OwnCode) -> None:
    own_code("broken", BROKEN)
    ready = prepare(load_config(None, [*SERIAL, "partition.kind=broken:Turned", "partition.validation=0.25"]))
    partition = ready.partition
    assert partition.true_cluster is not None and partition.true_cluster.tolist() == [0, 1, 0, 1]
    assert [partition.transform_for(client) for client in (0, 1)] == [Transform(), Transform(turns=2)]
    dealt = np.concatenate([partition.train, partition.validation, partition.test])
    assert np.array_equal(np.sort(dealt), np.arange(1797))
    same = prepare(load_config(ready.config.to_tree()))
    assert same.fingerprints == ready.fingerprints


def test_own_kinds_deal_official_splits_by_the_labels_that_clients_train_on() -> None:
    labels = np.tile(np.arange(4), 50)
    data = offered({"x": np.zeros((200, 2)), "y": labels, "test": np.arange(200) >= 120})
    partition = make_partition(partition_config(kind=f"{__name__}:ByClass", test="official"), data, 0)
    assert data.is_test[partition.test].all() and not data.is_test[partition.train].any()
    assert np.array_equal(partition.label_counts(data, "train"), np.diag([30] * 4))
    assert np.array_equal(partition.label_counts(data, "test"), np.diag([20] * 4))


class ByClass(PartitionKind):
    def assign(self, dataset: Dataset, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return dataset.labels[pool].astype(int)


# --- configs of other kinds by override


def test_another_kind_or_source_by_override_leaves_the_files_keys_for_the_first_one_out() -> None:
    file = load_config({"partition": {"kind": "cluster_classes", "clients": 12}, "data": {"source": "digits"}})
    iid = load_config(file, ["partition.kind=iid"])
    assert iid.partition == partition_config(kind="iid", clients=12)
    table = load_config({"data": {"source": "parquet", "path": "a.parquet", "label": "y"}}, ["data.source=npz"])
    assert table.data == data_config(source="npz", path="a.parquet")
    for config in (iid, table):
        assert load_config(config) == config == load_config(config.to_tree())
    with pytest.raises(
        InputError, match=r"partition\.alpha=2 is not used by partition\.kind=iid \(only by dirichlet\)"
    ):
        load_config(file, ["partition.kind=iid", "partition.alpha=2"])


def test_a_config_with_another_method_by_override_reads_back_as_itself() -> None:
    file = {"method": {"name": "fedac", "tuning": "granularity", "mu": 0.3}}
    config = load_config(file, ["method.name=fedprox"])
    for again in (load_config(config), load_config(config.to_tree())):
        assert again == config
        assert again.method.options_among({"mu"}) == {"mu": 0.3}
    back = load_config(config, ["method.name=fedac"])
    assert back.method.options_among({"mu", "tuning"}) == {"mu": 0.3, "tuning": "granularity"}


def test_configs_saved_by_version_0_1_are_read(tmp_path: Path) -> None:
    data = {"source": "digits", "label": "label", "window": 80, "stride": 1, "normalise": "standard"}
    assert load_config({"data": data}).data == data_config(source="digits")
    assert load_config({"data": {**data, "window": 9}}).data == data_config(source="digits")  # 0.1 took it, unused
    with pytest.raises(
        InputError, match=r"data\.window=9 is not used by data\.source=digits \(only by text, huggingface\)"
    ):
        load_config({"data": {"window": 9}})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"data": {"source": "excel"}},
            r"data\.source='excel' is not allowed: tables are read by parquet and csv .*or a func",
        ),
        ({"data": {"source": ["digits"]}}, r"data\.source=\['digits'\] is not allowed; allowed: digits, mnist"),
        ({"data": {"source": "python"}}, r"use rayfl\.run\(data=\.\.\.\)"),
        ({"data": frame()}, r"^data is a DataFrame, which no config can hold: data from Python go into rayfl\.run"),
        (frame(), r"^a DataFrame is no config: give a YAML file, a mapping or a Config; data go into"),
        ({"partition": 3}, r"^partition=3: input should be a mapping of keys, such as partition\.kind"),
        ({"partition": {"kind": "iid", "alhpa": 2}}, r"there is no key 'alhpa'; allowed: clients, kind, "),
        ({"partition": {"kind": "dirichlet", "alhpa": 2}}, r"there is no key 'alhpa' \(did you mean 'alpha'\?\)"),
        ({"data": {"source": "a.b:c", "path": "x"}}, r"data\.path=x is not used .* in data\.options"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else type(value).__name__,
)
def test_faults_of_unions_say_what_is_there_instead(given: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_config(given)
    (line,) = caught.value.lines
    assert "svhn'?" not in line
