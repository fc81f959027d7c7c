import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.results import TABLES, Run, RunWriter, Storage, TableWriter, load
from rayfl.results.writer import read_table

NUMBERS = pa.schema(
    [
        pa.field("round", pa.int64(), nullable=False),
        pa.field("client", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
    ]
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write_rounds(writer: RunWriter, first: int, last: int, clients: int = 3) -> None:
    for number in range(first, last + 1):
        writer.write_round(
            number,
            summary={"accuracy": number / 100, "clusters": 2, "bytes_up": 10 * number},
            clients={
                "client": np.arange(clients),
                "cluster": np.arange(clients) % 2,
                "trained": np.ones(clients, bool),
                "accuracy": np.full(clients, number / 100),
            },
            clusters={"cluster": np.arange(2), "size": [2, 1]},
        )


def run_writer(folder: str | Path, **options: Any) -> RunWriter:
    return RunWriter(Storage(folder), "trial", "fedac", 7, **options)


def rounds_in(folder: str | Path, table: str = "rounds") -> list[int]:
    return pd.read_parquet(f"{folder}/{table}")["round"].tolist()


def parts(folder: Path, table: str) -> list[str]:
    return sorted(f.name for f in (folder / table).iterdir())


# --- the schema -----------------------------------------------------------------


def test_the_tables_have_the_columns_of_the_design_in_their_order() -> None:
    rounds = (
        "run, method, seed, round, accuracy, macro_f1, loss, accuracy_mean, macro_f1_mean, accuracy_std,"
        " accuracy_worst10, clusters, largest_share, ari, nmi, misclustering, clients_trained, bytes_up, bytes_down,"
        " seconds_train, seconds_server, seconds_eval, seconds_total, extras"
    )
    clients = (
        "run, method, seed, round, client, cluster, true_cluster, trained, n_train, n_test, accuracy, macro_f1, loss"
    )
    assert ", ".join(TABLES["rounds"].names) == rounds
    assert ", ".join(TABLES["clients"].names) == clients
    assert ", ".join(TABLES["clusters"].names) == "run, method, seed, round, cluster, size, intra, inter, granularity"


def test_types_are_fixed_even_where_all_is_null(tmp_path: Path) -> None:
    with run_writer(tmp_path) as writer:
        writer.write_round(1, {}, {"client": [0, 1]}, {"cluster": [0]})
    for name, schema in TABLES.items():
        (file,) = (tmp_path / name).glob("*.parquet")
        assert pq.read_schema(file).equals(schema), name
    row = pd.read_parquet(tmp_path / "rounds").iloc[0]
    assert np.isnan(row["accuracy"]) and row["extras"] == "{}"


def test_a_table_without_a_round_is_readable_and_has_its_columns(tmp_path: Path) -> None:
    run_writer(tmp_path)
    for name, schema in TABLES.items():
        frame = pd.read_parquet(tmp_path / name)
        assert list(frame.columns) == schema.names and frame.empty


# --- what a row holds -----------------------------------------------------------


def test_what_was_written_is_what_pandas_reads(tmp_path: Path) -> None:
    with run_writer(tmp_path) as writer:
        writer.write_round(
            4,
            {"accuracy": np.float32(0.5), "ari": float("nan"), "bytes_down": np.int64(2**40)},
            {
                "client": np.array([3, 5, 9], np.int32),
                "cluster": np.array([1, -1, 0]),
                "true_cluster": np.ma.masked_equal([2, 0, 7], 7),
                "trained": np.array([True, False, True]),
                "n_test": [4, 5, 6],
                "loss": np.array([0.1, np.nan, 0.3]),
            },
            {"cluster": np.array([0, 1]), "granularity": np.array([0.25, np.nan])},
        )
    (row,) = pd.read_parquet(tmp_path / "rounds").to_dict("records")
    assert (row["run"], row["method"], row["seed"], row["round"]) == ("trial", "fedac", 7, 4)
    assert (row["accuracy"], row["bytes_down"]) == (0.5, 2**40)
    clients = pq.read_table(tmp_path / "clients").to_pydict()
    assert clients["client"] == [3, 5, 9]
    assert clients["cluster"] == [1, None, 0]
    assert clients["true_cluster"] == [2, 0, None]
    assert clients["trained"] == [True, False, True]
    assert clients["n_test"] == [4, 5, 6]
    assert clients["n_train"] == [None, None, None]
    assert clients["loss"] == [0.1, None, 0.3]
    assert clients["run"] == ["trial"] * 3 and clients["round"] == [4] * 3
    assert pq.read_table(tmp_path / "clusters")["granularity"].to_pylist() == [0.25, None]
    assert pq.read_table(tmp_path / "rounds")["ari"].null_count == 1


def test_extras_are_a_json_object_whatever_numpy_gives(tmp_path: Path) -> None:
    extras = {
        "k": np.int64(3),
        "g": np.array([0.5, np.nan]),
        "deep": {"inf": float("inf"), "list": [1, None]},
    }
    with run_writer(tmp_path) as writer:
        writer.write_round(1, {}, {"client": []}, extras=extras)
    text = pd.read_parquet(tmp_path / "rounds")["extras"][0]
    assert json.loads(text, parse_constant=pytest.fail) == {
        "k": 3,
        "g": [0.5, None],
        "deep": {"inf": None, "list": [1, None]},
    }


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"round": 1, "client": [1], "z": 3}, "'z'"),
        ({"round": 1, "client": [1, 2], "x": [0.5]}, "differ in length"),
        ({"client": [1]}, "round must not be empty"),
        ({"round": 1, "client": [1, None]}, "client must not be empty"),
    ],
)
def test_columns_that_do_not_fit_are_refused_and_leave_no_trace(
    tmp_path: Path, columns: dict[str, object], told: str
) -> None:
    writer = TableWriter(Storage(tmp_path), "t", NUMBERS)
    with pytest.raises(ValueError, match=told):
        writer.append(columns)
    writer.append({"round": 1, "client": [8]})
    writer.flush()
    assert pd.read_parquet(tmp_path / "t")["client"].tolist() == [8]


def test_a_hundred_thousand_clients_a_round_are_quick_to_append(tmp_path: Path) -> None:
    with run_writer(tmp_path, flush_seconds=1e9) as writer:
        write_rounds(writer, 1, 1)
        start = time.process_time()  # not the clock's: other tests may run beside this one
        write_rounds(writer, 2, 11, clients=100_000)
        assert time.process_time() - start < 2  # about 0.05 s; a loop over rows in Python takes longer
    assert len(pd.read_parquet(tmp_path / "clients", columns=["client"])) == 1_000_003


# --- streaming ------------------------------------------------------------------


def test_rounds_show_after_flush_seconds_and_on_close(tmp_path: Path) -> None:
    clock = Clock()
    writer = run_writer(tmp_path, flush_seconds=1.0, clock=clock)
    write_rounds(writer, 1, 1)
    assert rounds_in(tmp_path) == [1]
    clock.now = 0.9
    write_rounds(writer, 2, 3)
    assert rounds_in(tmp_path) == [1]
    clock.now = 1.0
    write_rounds(writer, 4, 4)
    assert rounds_in(tmp_path) == [1, 2, 3, 4]
    assert sorted(set(rounds_in(tmp_path, "clients"))) == [1, 2, 3, 4]
    write_rounds(writer, 5, 5)
    writer.close()
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]
    assert len(parts(tmp_path, "rounds")) == 1


def test_slow_writing_takes_at_most_a_tenth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    writer = run_writer(tmp_path, flush_seconds=1.0, clock=clock)
    write, spent = Storage.write, []

    def slow_write(self: Storage, name: str, data: bytes) -> None:
        clock.now += 2.0
        spent.append(2.0)
        write(self, name, data)

    monkeypatch.setattr(Storage, "write", slow_write)
    while clock.now < 400:
        clock.now += 0.5
        write_rounds(writer, len(spent) + 1, len(spent) + 1)
    assert 0.05 < sum(spent) / clock.now < 0.11


def test_a_round_shown_by_rounds_has_its_clients_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = run_writer(tmp_path, flush_seconds=0)
    write, seen = Storage.write, []

    def look_then_write(self: Storage, name: str, data: bytes) -> None:
        write(self, name, data)
        seen.append((set(rounds_in(tmp_path)), set(rounds_in(tmp_path, "clients"))))

    monkeypatch.setattr(Storage, "write", look_then_write)
    write_rounds(writer, 1, 3)
    assert len(seen) == 9
    assert all(rounds <= clients for rounds, clients in seen)


def test_a_reader_beside_a_quick_writer_sees_every_flushed_round_once_and_never_fails(tmp_path: Path) -> None:
    writer = run_writer(tmp_path, flush_seconds=0)
    flushed, reads, done = [0], [0], threading.Event()
    faults: list[Exception] = []

    def read() -> None:
        while not done.is_set() and not faults:
            try:
                promised = flushed[0]
                rounds = sorted(rounds_in(tmp_path))
                clients = pd.read_parquet(tmp_path / "clients", columns=["round", "client"])
                assert rounds == list(range(1, len(rounds) + 1)), "gap or double in rounds"
                assert len(rounds) >= promised, "a flushed round is not there"
                assert not clients.duplicated().any(), "double in clients"
                assert sorted(clients["round"].unique()) == list(range(1, len(clients) // 3 + 1)), "gap in clients"
                reads[0] += 1
                time.sleep(0.02)
            except Exception as error:
                faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 301):
        writer.write_round(number, {"accuracy": 0.5}, {"client": np.arange(3)})
        flushed[0] = number
    done.set()
    reader.join()
    assert not faults, faults
    assert reads[0] >= 5
    assert rounds_in(tmp_path) == list(range(1, 301))


def test_files_stay_few_over_two_thousand_rounds_and_none_ever_disappears(tmp_path: Path) -> None:
    writer = TableWriter(Storage(tmp_path), "t", NUMBERS)
    seen: list[str] = []
    for number in range(1, 2001):
        writer.append({"round": number, "client": [0], "x": 0.5})
        if number % 8 == 0:
            writer.flush()
            now = parts(tmp_path, "t")
            assert now[: len(seen)] == seen
            seen = now
    assert 8 <= len(seen) <= 16
    assert pd.read_parquet(tmp_path / "t")["round"].tolist() == list(range(1, 2001))


def test_a_sealed_file_is_never_written_again(tmp_path: Path) -> None:
    writer = TableWriter(Storage(tmp_path), "t", NUMBERS)
    stamps: dict[str, int] = {}
    for number in range(1, 200):
        writer.append({"round": number, "client": [0]})
        if number % 4:
            continue
        writer.flush()
        files = parts(tmp_path, "t")
        for file in files[:-1]:
            stamp = (tmp_path / "t" / file).stat().st_mtime_ns
            assert stamps.setdefault(file, stamp) == stamp
    assert len(stamps) == 3


def test_a_tail_with_very_many_rows_is_sealed_early(tmp_path: Path) -> None:
    writer = TableWriter(Storage(tmp_path), "t", NUMBERS)
    for number in range(1, 5):
        writer.append({"round": number, "client": np.arange(300_000)})
        writer.flush()
    assert len(parts(tmp_path, "t")) == 2
    assert len(pd.read_parquet(tmp_path / "t")) == 1_200_000


def test_hidden_files_of_a_crash_do_not_disturb_readers(tmp_path: Path) -> None:
    with run_writer(tmp_path) as writer:
        write_rounds(writer, 1, 2)
    (tmp_path / "rounds" / ".part-00000.parquet.0123").write_bytes(b"half a fi")
    assert rounds_in(tmp_path) == [1, 2]
    assert Storage(tmp_path).list("rounds") == ["part-00000.parquet"]


def test_kill_9_of_the_writer_leaves_the_first_rounds_readable(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import numpy as np
        from rayfl.results import RunWriter, Storage
        writer = RunWriter(Storage({str(tmp_path)!r}), "trial", "fedac", 0, flush_seconds=0)
        number = 0
        while True:
            number += 1
            writer.write_round(number, {{}}, {{"client": np.arange(50)}}, {{"cluster": [0]}})
            print(number, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 66:
            break
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    told = int(rest[-1]) if rest else 66
    rounds = rounds_in(tmp_path)
    assert rounds == list(range(1, len(rounds) + 1))
    assert told <= len(rounds) <= told + 1
    clients = pd.read_parquet(tmp_path / "clients")
    assert len(clients) == 50 * clients["round"].max() == 50 * clients["round"].nunique()
    assert clients["round"].max() >= len(rounds)


# --- going on after a crash -----------------------------------------------------


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashed")
    writer = run_writer(folder, flush_seconds=1e9)
    for first in range(1, 200, 10):
        write_rounds(writer, first, first + 9)
        writer.flush()
    return folder


@pytest.mark.parametrize("checkpoint", [0, 1, 63, 70, 71, 130, 200])
def test_a_resumed_run_takes_back_later_rounds_and_equals_an_undisturbed_one(
    tmp_path: Path, crashed: Path, checkpoint: int
) -> None:
    shutil.copytree(crashed, tmp_path / "a")
    before = parts(crashed, "clients")
    assert len(before) == 3
    writer = run_writer(tmp_path / "a", resume_after=checkpoint)
    for table in TABLES:
        assert sorted(set(rounds_in(tmp_path / "a", table))) == list(range(1, checkpoint + 1))
    assert parts(tmp_path / "a", "clients") == before  # emptied, not removed
    write_rounds(writer, checkpoint + 1, 210)
    writer.close()
    with run_writer(tmp_path / "b") as undisturbed:
        write_rounds(undisturbed, 1, 210)
    for table in TABLES:
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a" / table), pd.read_parquet(tmp_path / "b" / table))


def test_a_run_resumed_again_and_again_without_a_new_round_gets_no_new_files(tmp_path: Path, crashed: Path) -> None:
    shutil.copytree(crashed, tmp_path / "a")
    for _ in range(3):
        run_writer(tmp_path / "a", resume_after=100).close()
    assert parts(tmp_path / "a", "rounds") == parts(crashed, "rounds")


def test_a_new_run_never_overwrites_one_that_is_there(tmp_path: Path) -> None:
    with run_writer(tmp_path) as writer:
        write_rounds(writer, 1, 2)
    with pytest.raises(InputError, match=r"already holds a run.*rayfl resume"):
        run_writer(tmp_path)
    assert rounds_in(tmp_path) == [1, 2]


# --- storage --------------------------------------------------------------------


@pytest.fixture(params=["local", "file", "file with a space", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "local": str(tmp_path / "run"),
        "file": f"file://{tmp_path}/run",
        "file with a space": f"file://{tmp_path}/a%20run",
        "memory": f"memory://{uuid.uuid4().hex}/run",
    }[request.param]


def test_a_storage_gives_back_what_it_was_given(url: str) -> None:
    storage = Storage(url)
    assert not storage.exists("") and storage.list() == []
    storage.create()
    assert storage.exists("") and storage.list() == []
    storage.write("config.yaml", b"seed: 1")
    storage.write("deep/er/x.bin", b"\x00\x01")
    storage.write("config.yaml", b"seed: 2")
    assert storage.read("config.yaml") == b"seed: 2"
    assert storage.read("deep/er/x.bin") == b"\x00\x01"
    assert storage.list() == ["config.yaml", "deep"]
    assert storage.list("deep") == ["er"] and storage.list("nowhere") == []
    assert storage.exists("deep") and not storage.exists("deep/y")
    assert storage.folder("deep").read("er/x.bin") == b"\x00\x01"
    assert storage.folder("deep").name == "deep"
    assert Storage(storage.path).list() == ["config.yaml", "deep"]
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")


def test_a_whole_run_can_be_written_to_and_read_from_any_storage(url: str) -> None:
    storage = Storage(url)
    storage.create()
    storage.write("config.yaml", load_config({"rounds": 70}).to_yaml().encode())
    with run_writer(url) as writer:
        write_rounds(writer, 1, 65)
    writer = run_writer(url, resume_after=60)
    write_rounds(writer, 61, 70)
    writer.close()
    assert pd.read_parquet(f"{storage.path}/rounds")["round"].tolist() == list(range(1, 71))
    run = load(url)
    assert run.rounds["round"].tolist() == list(range(1, 71))
    assert len(run.clients) == 210 and run.config.rounds == 70


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path)
    storage.write("a.txt", b"old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        storage.write("a.txt", b"new")
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    assert storage.read("a.txt") == b"old"


def test_a_local_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage("runs/x")
    assert storage.path == str(tmp_path / "runs/x") and storage.name == "x"
    monkeypatch.chdir("/")
    storage.write("a", b"1")
    assert (tmp_path / "runs/x/a").exists()


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    Storage(tmp_path / "not" / "yet").check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attempt", [Storage.check, Storage.create])
def test_a_folder_that_cannot_be_is_told_with_the_cure(tmp_path: Path, attempt: Callable[[Storage], None]) -> None:
    (tmp_path / "file").write_text("x")
    for path, reason in [
        (tmp_path / "file", "it is a file"),
        (tmp_path / "file" / "below", "file"),
        (Path("/proc/rayfl"), ""),
    ]:
        with pytest.raises(InputError) as error:
            attempt(Storage(path))
        assert str(path) in str(error.value) and "output.dir" in str(error.value)
        assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_uri_that_nobody_knows_is_told() -> None:
    with pytest.raises(InputError, match=r"nosuchthing://x/y cannot be opened.*local folder"):
        Storage("nosuchthing://x/y")


# --- reading a run --------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "trial"
    Storage(folder).write("config.yaml", load_config({"seed": 3, "rounds": 5}).to_yaml().encode())
    with run_writer(folder) as writer:
        for number in (1, 2, 3):
            tested = {} if number == 2 else {"accuracy": 0.5 + number / 10}
            writer.write_round(
                number,
                tested,
                {"client": [2, 0, 1], "cluster": [-1, 1, 0]},
                {"cluster": [1, 0], "size": [1, 1]},
                extras={"hopkins": 0.5} if number < 3 else {"hopkins": 0.6, "split": [1, 2]},
            )
    return folder


def test_a_run_has_its_config_and_sorted_tables(finished: Path) -> None:
    run = load(finished)
    assert isinstance(run, Run) and run.path == str(finished)
    assert run.config.seed == 3 and run.config.method.name == "fedac"
    assert run.rounds["round"].tolist() == [1, 2, 3]
    assert run.rounds["accuracy"].isna().tolist() == [False, True, False]
    assert run.clients["client"].tolist() == [0, 1, 2] * 3
    assert run.clients["cluster"].tolist()[:2] == [1, 0] and run.clients["cluster"][2] is pd.NA
    assert str(run.clients["true_cluster"].dtype) == "Int32"
    assert run.clusters["cluster"].tolist() == [0, 1] * 3
    assert run.rounds is run.rounds


def test_extras_are_a_table_by_round(finished: Path) -> None:
    extras = load(finished).extras
    assert extras.index.name == "round" and extras.index.tolist() == [1, 2, 3]
    assert extras["hopkins"].tolist() == [0.5, 0.5, 0.6]
    assert extras.loc[3, "split"] == [1, 2] and pd.isna(extras["split"].iloc[0])


def test_a_run_tells_in_one_line_what_it_is(finished: Path) -> None:
    assert repr(load(finished)) == (f"Run('{finished}': fedac on digits, seed 3, 3 of 5 rounds, accuracy 0.8000)")


def test_a_run_that_has_just_begun_is_a_run(tmp_path: Path) -> None:
    Storage(tmp_path).write("config.yaml", load_config().to_yaml().encode())
    run_writer(tmp_path)
    run = load(tmp_path)
    assert run.rounds.empty and run.extras.empty and "0 of 60 rounds" in repr(run)
    assert list(run.clients.columns) == TABLES["clients"].names


def test_a_folder_that_is_no_run_is_told_with_what_is_missing(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is not a run folder: it does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"config.yaml, clients, clusters, rounds missing; it holds runs: trial"):
        load(finished.parent)
    (finished.parent / "sweep.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"it holds runs: trial; the sweep itself goes on with the 'rayfl sweep' command"
    ):
        load(finished.parent)
    (finished / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"not a run folder: config.yaml missing$"):
        load(finished)


@pytest.mark.parametrize("text", ["a: [", "just words", ""])
def test_a_damaged_config_is_told(finished: Path, text: str) -> None:
    (finished / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config.yaml"):
        _ = load(finished).config


def test_nobody_holds_on_to_the_bytes_of_a_table_that_was_read() -> None:
    """A thread of Arrow that let go of them while Python shut down ended a finished run with exit code -6."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(100)}), sink)
    held = 0
    for _ in range(300):
        data = np.frombuffer(sink.getvalue(), np.uint8).copy()
        freed = weakref.ref(data)
        assert read_table(data).num_rows == 100
        del data
        held += freed() is not None
    assert held == 0  # about 100 by threads
