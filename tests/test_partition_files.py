"""Partitions as files: a saved one gives the same bits, and what is no partition of these data is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import read
from test_composed import balanced, everything, made_up

from rayfl.analysis.partition_table import write_partition
from rayfl.config import load_config, partition_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.partition.digests import partition_digest
from rayfl.data.partition.file import NOTE
from rayfl.errors import InputError
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.screen import Screen

MIX: dict[str, Any] = {
    "kind": "composed",
    "clients": 9,
    "labels": {"kind": "dirichlet", "alpha": 0.5},
    "quantity": {"kind": "lognormal", "sigma": 0.5},
    "features": [
        {"kind": "rotation", "angle": [0, 15, 90]},
        {"kind": "noise", "std": [0, 30], "by": "client"},
        {"kind": "channels", "order": [[0]]},
    ],
    "concept": [{"kind": "swap", "random": 2}],
    "drift": [{"round": 2, "share": 0.5}, {"every": 3, "times": 4}],
}
KINDS: list[dict[str, Any]] = [
    {"kind": "iid", "clients": 5},
    {"kind": "dirichlet", "clients": 5, "validation": 0.2, "public": 0.1},
    {"kind": "cluster_classes", "clients": 10, "clusters": 3},
    {"kind": "transforms", "transform": "label_permutation", "clusters": 3},
    {"kind": "transforms", "angles": [0, 10, 200], "test": "official", "whole_per_cluster": True, "clients": 9},
    {"kind": "natural", "column": "owner"},
    MIX,
]


def data() -> Dataset:
    return made_up(np.tile(np.arange(10), 60), np.arange(600) % 7 == 0)


def saved(folder: Path, keys: dict[str, Any] = MIX, dataset: Dataset | None = None) -> tuple[Path, Partition]:
    dataset = dataset or data()
    partition = make_partition(partition_config(**keys), dataset, 3)
    return write_partition(partition, dataset, folder / "partition.parquet", {"partition": keys}), partition


def loaded(path: Path, dataset: Dataset | None = None, **keys: Any) -> Partition:
    return make_partition(partition_config(kind="file", path=str(path), **keys), dataset or data(), 99)


@pytest.mark.parametrize("keys", KINDS, ids=lambda keys: keys["kind"])
def test_a_saved_partition_gives_the_same_bits(keys: dict[str, Any], tmp_path: Path) -> None:
    path, partition = saved(tmp_path, keys)
    again = loaded(path)
    assert everything(again) == everything(partition)
    assert partition_digest(again) == partition_digest(partition)


def test_a_file_says_how_it_was_made_and_what_each_client_sees(tmp_path: Path) -> None:
    path, partition = saved(tmp_path)
    frame = pd.read_parquet(path)
    assert frame.columns.tolist() == ["client", "sample", "split", "label", "cluster", "transform"]
    note = json.loads(pq.read_schema(path).metadata[NOTE])
    assert note["config"]["partition"]["labels"] == {"kind": "dirichlet", "alpha": 0.5}
    client = int(partition.true_cluster.argmax())  # type: ignore[union-attr]
    rows = frame[frame.client == client]
    steps = note["transforms"][rows["transform"].iloc[0]]["steps"]
    assert steps[0] == {"kind": "rotation", "angle": 90.0}
    assert {change["round"] for change in note["changes"]} >= {2, 3}


def run(folder: Path, name: str, **partition: Any) -> Run:
    keys = {"federation": "serial", "rounds": 4, "model": {"name": "mlp"}, "local": {"steps": 3}, "name": name}
    keys |= {"output": {"dir": str(folder)}, "method": {"name": "ifca", "clusters": 3}}
    return simulate(load_config({**keys, "partition": partition}), Screen(quiet=True))


def test_a_run_of_a_saved_partition_has_the_same_tables(tmp_path: Path) -> None:
    from rayfl.data.sources import load_dataset

    config = load_config({"partition": MIX})
    digits = load_dataset(config.data, 0)
    made = make_partition(config.partition, digits, 0)
    path = write_partition(made, digits, tmp_path / "mix.parquet")
    here, there = run(tmp_path, "here", **MIX), run(tmp_path, "there", kind="file", path=str(path))
    for table in ("rounds", "clients", "clusters"):
        left, right = (
            read(each, table)
            .drop(columns=["run"])
            .filter(regex="^(?!seconds)")
            .drop(columns=["extras"], errors="ignore")
            for each in (here, there)
        )
        pd.testing.assert_frame_equal(left, right)


def rewritten(path: Path, change: Callable[[pd.DataFrame, dict[str, Any]], pd.DataFrame | None]) -> Path:
    table = pq.read_table(path)
    frame = table.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    note = json.loads(table.schema.metadata[NOTE])
    frame = frame if (found := change(frame, note)) is None else found
    new = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(new.replace_schema_metadata({NOTE: json.dumps(note).encode()}), path)
    return path


def _set(column: str, row: int, value: Any) -> Callable[[pd.DataFrame, dict[str, Any]], None]:
    def change(frame: pd.DataFrame, note: dict[str, Any]) -> None:
        frame.loc[row, column] = value

    return change


def _note(*keys: Any, value: Any) -> Callable[[pd.DataFrame, dict[str, Any]], None]:
    def change(frame: pd.DataFrame, note: dict[str, Any]) -> None:
        node: Any = note
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value

    return change


def _other_client(frame: pd.DataFrame, note: dict[str, Any]) -> None:
    mine = frame.index[(frame.client == 0) & (frame.split == "train")]
    other = frame[frame.client == 1].iloc[0]
    frame.loc[mine[0], ["client", "cluster", "transform"]] = other[["client", "cluster", "transform"]].to_numpy()


FORGED: list[tuple[Any, str]] = [
    (_set("sample", 0, 600), r"a sample is out of range, there are 600"),
    (_set("sample", 0, -1), r"column sample is negative"),
    (
        lambda frame, note: frame.assign(sample=frame["sample"].where(frame.index > 0, frame["sample"][1])),
        r"held twice",
    ),
    (_set("client", 0, 9), r"a client is out of range"),
    (_set("client", 0, None), r"rows without a client must be public"),
    (_set("split", 0, "trains"), r"column split must hold train, validation, test, public"),
    (_set("cluster", 0, 2), r"a client has more than one cluster"),
    (_set("transform", 0, 3), r"a client has more than one transform"),
    (lambda frame, note: frame[frame.client != 3], r"client 3 has no train sample"),
    (lambda frame, note: frame.drop(columns="split"), r"it has no column 'split'"),
    (lambda frame, note: frame.astype({"sample": str}), r"column sample holds no whole numbers"),
    (lambda frame, note: frame.assign(transform=frame["transform"] + 50), r"a transform is out of range"),
    (_other_client, r"was changed after it was saved"),
    (_note("clients", value=2**40), r"its metadata are damaged"),
    (_note("version", value=2), r"its metadata are damaged"),
    (_note("more", value=2), r"its metadata are damaged"),
    (_note("transforms", 1, "steps", value=[{"kind": "blur", "sigma": 1e9}]), r"the step blur"),
    (_note("transforms", 1, "labels", value=[1, 0]), r"labels of other classes"),
    (
        _note("transforms", 1, "steps", value=[{"kind": "os:system", "options": {}}]),
        r"names code to be imported, os:system",
    ),
    (_note("transforms", 1, "steps", value=[{"kind": "saturation", "factor": 0.5}]), r"three channels"),
    (_note("changes", 0, "clients", value=[0, 0]), r"a change names a client twice"),
    (_note("changes", 0, "round", value=90), r"changes do not stand in the order"),
    (_note("partition", value="x"), r"was changed after it was saved"),
    (_note("data", value="x"), r"it was saved for other data"),
]


@pytest.mark.parametrize(("change", "message"), FORGED, ids=[message for _, message in FORGED])
def test_a_file_that_was_changed_is_refused_in_one_line(change: Any, message: str, tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path)[0], change)
    with pytest.raises(InputError, match=message) as told:
        loaded(path)
    assert str(told.value).startswith("partition.path=")
    assert "\n" not in str(told.value)


def test_a_partition_of_other_data_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    with pytest.raises(InputError, match=r"it was saved for other data: use the data section"):
        loaded(path, balanced(61))


def test_torn_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    whole = path.read_bytes()
    foreign = tmp_path / "foreign.parquet"
    pd.DataFrame({"client": [1]}).to_parquet(foreign)
    for content, message in (
        (b"", "cannot be read as a Parquet file"),
        (whole[: len(whole) // 2], "cannot be read as a Parquet file"),
        (whole[:400] + bytes(400) + whole[800:], "partition.path="),
        (b"client,sample\n", "cannot be read as a Parquet file"),
        (foreign.read_bytes(), "it is no partition that rayfl saved"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as told:
            loaded(path)
        assert "\n" not in str(told.value)
    with pytest.raises(InputError, match=r"there is no such file"):
        loaded(tmp_path / "none.parquet")
    with pytest.raises(InputError, match=r"cannot be read as a Parquet file"):
        loaded(tmp_path)


def test_code_that_a_file_names_is_imported_only_if_the_config_names_it_too(tmp_path: Path) -> None:
    own = {"kind": "composed", "clients": 4, "clusters": 2, "features": [{"kind": "numpy:flip", "axis": [3, 2]}]}
    path, partition = saved(tmp_path, own)
    with pytest.raises(
        InputError, match=r"names code to be imported, numpy:flip: if you trust it, name it in partition.functions"
    ):
        loaded(path)
    assert everything(loaded(path, functions=["numpy:flip"])) == everything(partition)
