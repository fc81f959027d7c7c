"""`rayfl export`: a run's numbers for other tools, from its Parquet alone."""

import errno
import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from faults import wait_until
from pyarrow.csv import read_csv
from run_folders import CLIENTS, add_rounds, begin_run, clients, files_below, gated_run, open_gate, write_run
from typer.testing import CliRunner

import rayfl
from rayfl.cli import app
from rayfl.errors import InputError, RayflError
from rayfl.following.export import TARGETS, export, target
from rayfl.following.new_rounds import NewRounds
from rayfl.results import RunWriter, Storage
from rayfl.results.locks import is_locked


def needs(package: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(package)
    missing = found is None or found.origin is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'rayfl[{package}]'")


def said(*paths: Path, to: str, out: Path, code: int = 0, **options: Any) -> list[str]:
    lines: list[str] = []
    assert export(paths, to, out, say=lines.append, **options) == code, lines
    return lines


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of three rounds, with clusters, evaluated in the last one and the second."""
    folder = tmp_path_factory.mktemp("runs")
    rayfl.run(
        None,
        quiet=True,
        name="mine",
        rounds=3,
        federation="serial",
        evaluate={"every": 2},
        partition={"clients": 8},
        model={"name": "mlp"},
        local={"steps": 1},
        method={"name": "fesem", "clusters": 2},
        output={"dir": str(folder)},
    )
    return folder / "mine"


# --- what is read -------------------------------------------------------------------


def numbers_read(new: NewRounds) -> list[int]:
    return [number for batch in new.read() for number, _, _ in batch.rows()]


def test_every_round_is_read_once_with_its_rows_of_all_tables(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run", "rounds=9")
    new = NewRounds(storage, begun=1000.0)
    assert numbers_read(new) == []
    add_rounds(storage, 1, 2)
    (batch,) = new.read()
    assert (batch.first, batch.last, batch.times) == (1, 2, [1000.25, 1000.5])
    assert len(batch.clients) == 2 * CLIENTS and batch.sizes(1) == {0: 4, 1: 2} and batch.sizes(2) == {0: 3, 1: 3}
    np.testing.assert_array_equal(batch.client_values(2, "accuracy"), clients(2)["accuracy"])
    add_rounds(storage, 3, 5)
    (batch,) = new.read()
    assert (batch.first, batch.last, batch.times[0]) == (3, 5, 1000.75)
    assert numbers_read(new) == []


def test_rounds_that_a_resumed_run_repeats_are_not_read_again(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run", "rounds=9")
    add_rounds(storage, 1, 5)
    new = NewRounds(storage)
    assert numbers_read(new) == [1, 2, 3, 4, 5]
    add_rounds(storage, 3, 4)  # from a checkpoint after round 2
    assert numbers_read(new) == []
    add_rounds(storage, 5, 7)
    assert numbers_read(new) == [6, 7]


def test_files_that_hold_nothing_new_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = begin_run(tmp_path / "run", "rounds=300")
    new = NewRounds(storage)
    for first in range(1, 19, 3):  # each call closes a file
        add_rounds(storage, first, first + 2)
        assert numbers_read(new) == list(range(first, first + 3))
    read: list[str] = []
    whole = Storage.read
    monkeypatch.setattr(Storage, "read", lambda self, name: read.append(name) or whole(self, name))
    add_rounds(storage, 19, 20)
    read.clear()
    assert numbers_read(new) == [19, 20]
    assert len(storage.list("clients")) == 7
    assert sum(name.startswith("clients/") for name in read) <= 2


def test_many_clients_come_in_pieces_of_whole_rounds(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run", "rounds=200")
    with RunWriter(storage, "run", "fesem", 0, flush_seconds=3600) as writer:
        for number in range(1, 151):
            writer.write_round(number, {"accuracy": 0.5}, clients(number))
            if number in (70, 140):  # a file is closed after 64 rounds
                writer.flush()
    batches = list(NewRounds(storage).read())
    assert len(batches) == 3
    assert [n for batch in batches for n, _, _ in batch.rows()] == list(range(1, 151))
    for batch in batches:
        assert len(batch.clients) == CLIENTS * (batch.last - batch.first + 1)


# --- csv --------------------------------------------------------------------------------


def test_csv_has_the_tables_as_they_are(real: Path, tmp_path: Path) -> None:
    before = files_below(real)
    (line,) = said(real, to="csv", out=tmp_path)
    assert line == f"mine: rounds 1 to 3 -> {tmp_path / 'mine'}"
    run = rayfl.load(real)
    for name, table in (("rounds", run.rounds), ("clients", run.clients), ("clusters", run.clusters)):
        exported = read_csv(tmp_path / "mine" / f"{name}.csv").to_pandas()
        assert list(exported.columns) == list(table.columns)
        pd.testing.assert_frame_equal(exported, table, check_dtype=False, check_exact=True)
    settings = pd.read_csv(tmp_path / "mine" / "config.csv", index_col="key")["value"]
    assert settings["method.name"] == "fesem" and settings["local.steps"] == "1"
    assert files_below(real) == before


def test_started_again_csv_gets_only_what_is_new(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    out = tmp_path / "out"
    assert said(tmp_path / "run", to="csv", out=out) == [f"run: rounds 1 to 2 -> {out / 'run'}"]
    old = (out / "run" / "rounds.csv").read_bytes()
    assert said(tmp_path / "run", to="csv", out=out) == [f"run: nothing new after round 2 -> {out / 'run'}"]
    add_rounds(storage, 3, 4)
    assert said(tmp_path / "run", to="csv", out=out) == [f"run: rounds 3 to 4 -> {out / 'run'}"]
    assert (out / "run" / "rounds.csv").read_bytes().startswith(old)
    assert pd.read_csv(out / "run" / "rounds.csv")["round"].tolist() == [1, 2, 3, 4]
    assert len(pd.read_csv(out / "run" / "clients.csv")) == 4 * CLIENTS


def test_what_a_killed_export_left_half_written_is_cut_off(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    out = tmp_path / "out" / "run"
    said(tmp_path / "run", to="csv", out=tmp_path / "out")
    for name in ("rounds", "clients"):
        with (out / f"{name}.csv").open("a") as file:
            file.write('"run","fesem",0,3,0.3')
    add_rounds(storage, 3, 4)
    said(tmp_path / "run", to="csv", out=tmp_path / "out")
    assert pd.read_csv(out / "rounds.csv")["round"].tolist() == [1, 2, 3, 4]
    assert pd.read_csv(out / "clients.csv")["round"].value_counts().to_dict() == dict.fromkeys([1, 2, 3, 4], CLIENTS)


def test_an_export_that_was_changed_or_is_of_another_run_is_refused(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    out = tmp_path / "out"
    said(tmp_path / "run", to="csv", out=out)
    add_rounds(storage, 3, 4)
    (out / "run" / "clients.csv").write_text("")
    with pytest.raises(InputError, match=r"clients\.csv was changed since it was exported: remove"):
        export([tmp_path / "run"], "csv", out)
    other = write_run(tmp_path / "elsewhere" / "run", "seed=5")
    with pytest.raises(InputError, match=r"is the export of another run \(its seed differ\)"):
        export([other], "csv", out)
    (out / "run" / "rayfl-export.json").write_text("{")
    with pytest.raises(InputError, match="is damaged: remove"):
        export([tmp_path / "run"], "csv", out)


# --- following --------------------------------------------------------------------------


def test_following_exports_each_round_of_a_real_run_once_until_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        for number in (3, 7):
            if f" to {number} -> " in line:
                open_gate(tmp_path, number + 1)

    with gated_run(tmp_path) as running:
        assert export([folder], "csv", tmp_path / "out", follow=True, interval=0.1, say=say) == 0
        assert running.wait(30) == 0
    assert len(lines) >= 3 and lines[-1].endswith(f"to 9 -> {tmp_path / 'out' / 'mine'}"), lines
    run = rayfl.load(folder)
    assert pd.read_csv(tmp_path / "out" / "mine" / "rounds.csv")["round"].tolist() == list(range(1, 10))
    exported = pd.read_csv(tmp_path / "out" / "mine" / "clients.csv")
    assert exported[["round", "client"]].values.tolist() == run.clients[["round", "client"]].values.tolist()


def test_following_ends_with_1_when_nobody_goes_on_with_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2)
    lines = said(folder, to="csv", out=tmp_path / "out", follow=True, interval=0.05, patience=0.2, code=1)
    assert lines[-1] == f"{folder} is unfinished, and no process runs it; resume it: rayfl resume {folder}"
    assert pd.read_csv(tmp_path / "out" / "run" / "rounds.csv")["round"].tolist() == [1, 2]


def test_runs_that_start_later_are_followed_too(tmp_path: Path) -> None:
    first = begin_run(tmp_path / "runs" / "first")

    def carry_out() -> None:
        with first.locked():
            time.sleep(0.3)
            add_rounds(first, 1, 4)
        second = begin_run(tmp_path / "runs" / "second")
        with second.locked():
            add_rounds(second, 1, 4)

    thread = threading.Thread(target=carry_out)
    thread.start()
    wait_until(lambda: is_locked(first) is True, "the first run", 10)
    said(tmp_path / "runs", to="csv", out=tmp_path / "out", follow=True, interval=0.05, patience=1.0)
    thread.join()
    for name in ("first", "second"):
        assert pd.read_csv(tmp_path / "out" / name / "rounds.csv")["round"].tolist() == [1, 2, 3, 4]


def test_a_damaged_run_is_told_and_the_others_are_exported(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "good")
    (write_run(tmp_path / "runs" / "torn") / "rounds" / "part-00000.parquet").write_bytes(b"PAR1 torn")
    (write_run(tmp_path / "runs" / "half_torn") / "clients" / "part-00000.parquet").write_bytes(b"PAR1 torn")
    lines = said(tmp_path / "runs", to="csv", out=tmp_path / "out", code=1)
    for name in ("torn", "half_torn"):
        assert any(line.startswith(f"{name}: damaged, not exported: ") for line in lines)
    assert len(pd.read_csv(tmp_path / "out" / "good" / "rounds.csv")) == 4
    assert not (tmp_path / "out" / "torn").exists()


# --- secrets and bad input --------------------------------------------------------------


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else whole(name, *rest)
    )


@pytest.mark.parametrize("to", [name for name, tool in TARGETS.items() if tool.package])
def test_a_missing_package_is_told_with_what_to_install(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(to, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    with pytest.raises(InputError, match=rf"--to {to} needs a package .*: pip install 'rayfl\[{to}\]'") as told:
        export([tmp_path / "run"], to)
    assert len(told.value.lines) == 1 and not (tmp_path / "exports").exists()


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "a" / "run")
    write_run(tmp_path / "b" / "run")
    (tmp_path / "file").write_text("")
    for paths, to, out, told in (
        ([run], "tensorbord", None, "did you mean 'tensorboard'"),
        ([tmp_path / "nowhere"], "csv", None, "does not exist"),
        ([run], "csv", run / "out", "is in the run folder"),
        ([tmp_path / "a", tmp_path / "b"], "csv", None, "have the same name"),
        ([run], "csv", "s3://bucket/x", "is a URI"),
        ([run], "csv", tmp_path / "file" / "x", "cannot be made"),
    ):
        with pytest.raises(InputError, match=told):
            export(paths, to, out)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "file"]
    assert not (run / "out").exists()


def secret_run(folder: Path) -> Path:
    options = ["model.options={api_key: hush, width: 3}", "method.place='s3://KEY:hush@bucket/x'"]
    storage = begin_run(folder, *options)
    config = folder / "config.yaml"  # as an older rayfl, or a person, may have written it
    config.write_text(config.read_text().replace("s3://bucket/x", "s3://KEY:hush@bucket/x"))
    assert config.read_text().count("hush") == 2
    add_rounds(storage, 1, 4, recoveries=["s3://KEY:hush@bucket/y is gone"])
    return folder


@pytest.mark.parametrize(
    "to",
    ["csv", *[pytest.param(name, marks=needs(tool.package)) for name, tool in TARGETS.items() if tool.package]],
)
def test_no_secret_is_exported(to: str, tmp_path: Path) -> None:
    lines = said(secret_run(tmp_path / "run"), to=to, out=tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and sum(path.stat().st_size for path in files) > 100
    for path in files:
        assert b"hush" not in path.read_bytes(), path
    assert "hush" not in "".join(lines)


def test_a_full_disk_is_told_in_one_line_and_the_next_export_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    out = tmp_path / "out"
    said(tmp_path / "run", to="csv", out=out)
    add_rounds(storage, 3, 4)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RayflError, match="out cannot be written to: No space left"):
        patch.setattr(target, "write_whole", full)  # after the rows, before the note
        export([tmp_path / "run"], "csv", out)
    said(tmp_path / "run", to="csv", out=out)
    assert pd.read_csv(out / "run" / "rounds.csv")["round"].tolist() == [1, 2, 3, 4]


def test_the_command_says_where_the_export_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "one")
    done = CliRunner().invoke(app, ["export", "runs", "--to", "csv"])
    assert done.exit_code == 0, done.output
    assert done.output == "one: rounds 1 to 4 -> exports/csv/one\n"
    assert (tmp_path / "exports" / "csv" / "one" / "rounds.csv").exists()


# --- the tools --------------------------------------------------------------------------


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


@needs("tensorboard")
def test_tensorboard_shows_the_numbers_of_the_table_by_round(real: Path, tmp_path: Path) -> None:
    said(real, to="tensorboard", out=tmp_path)
    found, run = events(tmp_path / "mine"), rayfl.load(real)
    tags = found.Tags()["scalars"]
    for column in ("accuracy", "loss", "clusters", "ari", "bytes_up", "seconds_total"):
        measured = run.rounds[["round", column]].dropna()
        shown = found.Scalars(f"rounds/{column}")
        assert [event.step for event in shown] == measured["round"].tolist()
        np.testing.assert_allclose([event.value for event in shown], measured[column], rtol=1e-6)
    assert [event.step for event in found.Scalars("rounds/accuracy")] == [2, 3]  # rounds without a value have none
    np.testing.assert_allclose(
        [event.value for event in found.Scalars("extras/computation")], run.extras["computation"], rtol=1e-6
    )
    last = run.clusters[run.clusters["round"] == 3].set_index("cluster")["size"]
    for cluster, size in last.items():
        assert found.Scalars(f"cluster_size/{cluster}")[-1].value == size
    assert not [tag for tag in tags if "extras/extras" in tag or tag.startswith("rounds/seed")]


@needs("tensorboard")
def test_tensorboard_has_a_histogram_of_the_clients_and_the_config(real: Path, tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2
    from tensorboard.util import tensor_util

    said(real, to="tensorboard", out=tmp_path)
    found, run = events(tmp_path / "mine"), rayfl.load(real)
    shown = found.Tensors("clients/accuracy")
    assert [event.step for event in shown] == [2, 3]
    for event in shown:
        bins = tensor_util.make_ndarray(event.tensor_proto)  # left edge, right edge, count
        reached = run.clients[run.clients["round"] == event.step]["accuracy"].dropna()
        assert bins[:, 2].sum() == len(reached) == 8
        assert bins[0, 0] == pytest.approx(reached.min()) and bins[-1, 1] == pytest.approx(reached.max())
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["method.name"].string_value == "fesem"
    assert settings["local.lr"].number_value == run.config.local.lr
    (text,) = found.Tensors("config")
    assert "method.name: fesem" in tensor_util.make_ndarray(text.tensor_proto).flatten()[0].decode()


@needs("tensorboard")
def test_started_again_tensorboard_gets_each_round_once(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    out = tmp_path / "out"
    add_rounds(storage, 1, 2)
    said(tmp_path / "run", to="tensorboard", out=out)
    add_rounds(storage, 3, 4)
    # Killed after the file was there and before the note was: the file counts.
    note = (out / "run" / "rayfl-export.json").read_text()
    said(tmp_path / "run", to="tensorboard", out=out)
    (out / "run" / "rayfl-export.json").write_text(note)
    assert said(tmp_path / "run", to="tensorboard", out=out) == [f"run: nothing new after round 4 -> {out / 'run'}"]
    shown = events(out / "run").Scalars("rounds/accuracy")
    assert [(event.step, round(event.value, 6)) for event in shown] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


@needs("mlflow")
def test_mlflow_has_the_numbers_by_round_and_gets_what_is_new(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    storage = begin_run(tmp_path / "run", "seed=3")
    out = tmp_path / "out"
    add_rounds(storage, 1, 2)
    said(tmp_path / "run", to="mlflow", out=out)
    add_rounds(storage, 3, 4)
    assert said(tmp_path / "run", to="mlflow", out=out) == [f"run: rounds 3 to 4 -> {out / 'run'}"]
    client = MlflowClient(f"sqlite:///{out}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert found.data.params["seed"] == "3" and found.data.params["method.name"] == "fesem"
    history = client.get_metric_history(found.info.run_id, "rounds/accuracy")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert found.info.status == "FINISHED"


@needs("mlflow")
def test_rounds_logged_twice_after_a_kill_are_one_in_mlflow(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    out = tmp_path / "out"
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    said(tmp_path / "run", to="mlflow", out=out)
    note = (out / "run" / "rayfl-export.json").read_text()
    add_rounds(storage, 3, 4)
    said(tmp_path / "run", to="mlflow", out=out)
    (out / "run" / "rayfl-export.json").write_text(note)  # as if killed before the note was written
    said(tmp_path / "run", to="mlflow", out=out)
    client = MlflowClient(f"sqlite:///{out}/mlflow.db")
    history = client.get_metric_history(json.loads(note)["mlflow_run"], "rounds/loss")
    assert sorted(metric.step for metric in history) == [1, 2, 3, 4]


@needs("wandb")
def test_wandb_writes_an_offline_run_and_says_that_it_starts_over(tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run", "seed=3")
    out = tmp_path / "out"
    add_rounds(storage, 1, 2)
    said(tmp_path / "run", to="wandb", out=out)
    (offline,) = (out / "run" / "wandb").glob("offline-run-*")
    assert wandb_history(offline, "rounds/accuracy") == [(1, 0.1), (2, 0.2)]
    assert said(tmp_path / "run", to="wandb", out=out) == [f"run: nothing new after round 2 -> {out / 'run'}"]
    add_rounds(storage, 3, 4)
    first, second = said(tmp_path / "run", to="wandb", out=out)
    assert "wandb cannot continue an offline run" in first and "rounds 1 to 4" in second
    (newest,) = set((out / "run" / "wandb").glob("offline-run-*")) - {offline}
    assert wandb_history(newest, "rounds/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def wandb_history(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return the steps and values of a metric in an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    found = []
    for data in leveldb_records(file.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if name in items:
                found.append((record.history.step.num, items[name]))
    return found


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log: blocks of 32 KB with pieces, each with a checksum, its length and its place."""
    at, whole = 7, b""  # after the file's own header
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block is empty if no header fits into it
            at += 32768 - at % 32768
            continue
        length, place = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if place in (1, 4):  # all of a record, or its last piece
            yield whole
            whole = b""
