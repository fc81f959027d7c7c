"""Checkpoints: what they hold, what they cost, how a run continues from them, and what is refused."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from forks import Forked
from tables import assert_same, tables

from rayfl.client.store import ClientState
from rayfl.config import load_config
from rayfl.errors import ClientError, InputError, RayflError
from rayfl.federation.places import FederationState
from rayfl.launch import resume, simulate
from rayfl.packing import pack, unpack
from rayfl.results import TABLES, Run, Storage, load
from rayfl.simulation.checkpoints import Checkpoints
from rayfl.simulation.manifest import check_of
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import Server, Snapshot

SMALL = ["federation=serial", "data.limit=480", "partition.clients=12", "local.steps=2", "local.lr=0.1"]
FEDAC = [*SMALL, "method.tune_from=2", "participation.fraction=0.5"]
Runs = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Run in a folder of this test's own, under a name; every method in process."""

    def simulated(name: str, *overrides: str) -> Run:
        return simulate(load_config(None, [f"output.dir={tmp_path}", f"name={name}", *overrides]), Screen(quiet=True))

    return simulated


def go_on(run_or_path: Run | Path, *overrides: str) -> Run:
    path = run_or_path.path if isinstance(run_or_path, Run) else run_or_path
    return resume(path, overrides, Screen(quiet=True))


# -- plain data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    vector: np.ndarray
    name: str = "x"


@dataclass
class Outer:
    inner: Inner | None
    many: list[Inner]
    table: dict[int, np.ndarray]
    number: float
    scalar: Any
    pair: tuple[int, str]
    nothing: Inner | None = None


def test_state_comes_back_as_it_was_with_its_classes_and_types() -> None:
    state = Outer(
        Inner(np.arange(3, dtype=np.float32)),
        [Inner(np.zeros((2, 0))), Inner(np.ones(1, bool), "y")],
        {7: np.array([1, 2], np.int16)},
        float("nan"),
        np.float32(0.1),
        (3, "z"),
    )
    tree, arrays = pack(state)
    back = unpack((json.loads(json.dumps(tree)), arrays), Outer)
    assert isinstance(back.inner, Inner) and back.inner.vector.dtype == np.float32
    np.testing.assert_array_equal(back.inner.vector, [0, 1, 2])
    assert [i.name for i in back.many] == ["x", "y"] and back.many[0].vector.shape == (2, 0)
    assert back.table[7].dtype == np.int16
    assert back.number != back.number and back.nothing is None
    assert back.scalar == np.float32(0.1) and back.scalar.dtype == np.float32
    assert back.pair == (3, "z")
    back.inner.vector[0] = 5  # a copy, and one may write to it
    assert state.inner is not None and state.inner.vector[0] == 0


def test_a_method_whose_state_cannot_be_saved_is_told_before_the_first_round(
    run: Runs, own_code: Callable[[str, str], None], tmp_path: Path
) -> None:
    own_code(
        "unsaveable",
        """
from rayfl.methods.fedavg import FedAvg

class Mine(FedAvg):
    def start(self):
        super().start()
        self.state.generator = object()
        self.state = {"generator": object()}
""",
    )
    with pytest.raises(InputError, match=r"method\.0 is of type object, which a checkpoint cannot hold"):
        run("a", *SMALL, "method.name=unsaveable:Mine")
    assert not (tmp_path / "a").exists()


# -- going on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", ["serial", "ray"])
def test_a_run_that_is_given_more_rounds_equals_one_that_had_them_from_the_start(
    run: Runs, ray_session: None, federation: str
) -> None:
    """Also where the last round is special: tested though it is not its turn, and fine-tuned after."""
    common = [*FEDAC, "evaluate.every=3", "method.finetune=true"]
    undisturbed = run("a", *common, "rounds=8")
    short = run("b", *common, "rounds=5", "output.checkpoint_every=1000")
    assert [p.name for p in Path(short.path).glob("checkpoints/round-*")] == ["round-000004.json"]
    assert len(short.rounds["accuracy"].dropna()) == 2  # rounds 3 and 5
    on = [] if federation == "serial" else ["federation=ray", "ray.actors=2"]
    longer = go_on(short, "rounds=8", *on)
    assert_same(undisturbed, longer)
    assert longer.config.rounds == 8
    assert_same(undisturbed, load(short.path))


def test_resuming_a_finished_run_changes_nothing(run: Runs) -> None:
    done = run("a", *SMALL, "rounds=3", "method.name=fedavg")
    before = {p: p.read_bytes() for p in Path(done.path).rglob("*") if p.is_file()}
    assert len(go_on(done).rounds) == 3
    assert {p: p.read_bytes() for p in Path(done.path).rglob("*") if p.is_file()} == before


def test_without_checkpoints_a_run_begins_anew_and_comes_out_the_same(run: Runs) -> None:
    undisturbed = run("a", *FEDAC, "rounds=5")
    short = run("b", *FEDAC, "rounds=3", "output.checkpoint_every=0")
    assert not (Path(short.path) / "checkpoints").exists()
    assert_same(undisturbed, go_on(short, "rounds=5"))


@pytest.mark.parametrize("how", ["by hand", "by a program that drops comments"])
def test_without_checkpoints_a_run_whose_config_was_edited_is_refused(run: Runs, how: str) -> None:
    path = Path(run("a", *FEDAC, "rounds=3", "output.checkpoint_every=0").path)
    text = (path / "config.yaml").read_text().replace("lr: 0.1", "lr: 0.2")
    (path / "config.yaml").write_text(text if how == "by hand" else yaml.safe_dump(yaml.safe_load(text)))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"local\.lr=0\.2: the run began with 0\.1"):
        go_on(path, "rounds=5")
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_only_what_a_checkpoint_names_is_pruned(stopped: Path, tmp_path: Path, run: Runs) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "a"))
    mine = ["server-notes.txt", "clients-of-mine.npz", "round-trip.json", "server-000001.npz"]
    for name in mine:
        (folder / "checkpoints" / name).write_text("mine")
    assert_same(run("b", *FEDAC, "rounds=6"), go_on(folder))
    left = {p.name for p in (folder / "checkpoints").iterdir()}
    assert set(mine) <= left
    assert {n for n in left if n.startswith("round-0")} == {"round-000004.json", "round-000005.json"}
    needed = [json.loads(p.read_bytes())["checks"] for p in (folder / "checkpoints").glob("round-0*.json")]
    assert left == {*mine, "round-000004.json", "round-000005.json"}.union(*needed)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server that speaks S3, on this machine."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        options = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "region": "us-east-1"}
        fs.S3FileSystem(**options, allow_bucket_creation=True).create_dir("results")
        yield "s3://results/runs?" + "&".join(f"{key}={value}" for key, value in options.items())
    finally:
        server.stop()


def test_checkpoints_work_on_any_storage(ray_session: None, tmp_path: Path, bucket: str) -> None:
    """A bucket of a local server, a memory behind fsspec, and for shared folders a file URI."""
    common = [*FEDAC, "output.checkpoint_every=1"]
    undisturbed = simulate(load_config(None, [*common, "rounds=6", f"output.dir={tmp_path}"]), Screen(quiet=True))
    for where in (bucket, f"memory://{uuid.uuid4().hex}", f"file://{tmp_path}/shared%20folder"):
        short = simulate(load_config(None, [*common, "rounds=4", f"output.dir={where}", "name=x"]), Screen(quiet=True))
        assert short.path.startswith(("s3://results/runs/x?endpoint_override=", "memory://", "/"))
        assert set(short.rounds["run"]) == {"x"}
        with pytest.raises(InputError, match="exists already"):
            simulate(load_config(None, [*common, f"output.dir={where}", "name=x"]), Screen(quiet=True))
        names = Storage(short.path).list("checkpoints")
        assert [n for n in names if n.startswith("round")] == ["round-000002.json", "round-000003.json"]
        assert_same(undisturbed, resume(short.path, ["rounds=6"], Screen(quiet=True)))


def test_a_failing_client_leaves_a_run_that_goes_on_once_its_code_is_mended(
    run: Runs, own_code: Callable[[str, str], None], tmp_path: Path
) -> None:
    code = """
from pathlib import Path
from torch import nn

class Net(nn.Module):
    steps = 0

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        Net.steps += self.training
        if Net.steps > 60 and not Path(PATH).exists():
            raise RuntimeError("the cat ate it")
        return self.head(x.flatten(1))
""".replace("PATH", repr(str(tmp_path / "mended")))
    own_code("fragile", code)
    common = [*SMALL, "method.name=ditto", "model.name=fragile:Net", "training=loop", "output.checkpoint_every=1"]
    with pytest.raises(ClientError, match=r"client \d+ failed in round \d:\nTraceback(.|\n)*the cat ate it") as failed:
        run("a", *common, "rounds=5")
    assert str(failed.value).endswith(f"rayfl resume {tmp_path / 'a'} model.name=fragile:Net"), "a command that works"
    (tmp_path / "mended").touch()
    assert 0 < len(load(tmp_path / "a").rounds) < 5
    with pytest.raises(
        InputError, match=r"names code to be imported, model\.name=fragile:Net: if you trust it, name it"
    ):
        go_on(tmp_path / "a")
    assert_same(run("b", *common, "rounds=5"), go_on(tmp_path / "a", "model.name=fragile:Net"))


# -- what they hold and cost -------------------------------------------------------------------------------------


def test_a_checkpoint_writes_only_those_who_trained_and_old_ones_are_pruned(run: Runs, tmp_path: Path) -> None:
    """A quarter of the clients per round: they share files, and each client is stored at most twice on average."""
    seen: list[dict[str, list[str]]] = []

    class Watching(Screen):
        def show_round(self, record: Any) -> None:
            super().show_round(record)
            folder = tmp_path / "a" / "checkpoints"
            for path in sorted(folder.glob("round-*.json"))[-1:]:
                seen.append({path.name: sorted(json.loads(path.read_bytes())["checks"])})
                files = {p.name for p in folder.iterdir()}
                needed = set()
                for manifest in folder.glob("round-*.json"):
                    needed |= {manifest.name, *json.loads(manifest.read_bytes())["checks"]}
                assert files == needed  # nothing missing, nothing left behind
                assert len([f for f in files if f.endswith(".json")]) <= 2

    words = [*SMALL, "method.name=ditto", "participation.fraction=0.25", "rounds=20", "output.checkpoint_every=1"]
    config = load_config(None, [f"output.dir={tmp_path}", "name=a", *words])
    simulate(config, Watching(quiet=True))
    written = {name for entry in seen for names in entry.values() for name in names if name.startswith("clients")}
    assert len(written) > 10  # a file per round, of those who trained
    held = [p.stat().st_size for p in (tmp_path / "a" / "checkpoints").glob("clients-*")]
    model = prepare(config).facts.initial.nbytes
    assert sum(held) < 2 * 12 * 2 * 1.1 * model  # twelve clients, each with two models


def test_files_of_which_little_is_still_needed_are_written_anew(tmp_path: Path) -> None:
    """Ten clients train in every round and one only in that round, so that no file is ever of no use."""
    p = prepare(load_config(None, [*SMALL, "method.name=fedavg", "rounds=2000"]))
    checkpoints = Checkpoints(Storage(tmp_path), p.config, p)
    changed_in = np.full(60, -1)

    class Fake:
        round = 0

        def snapshot(self) -> Snapshot:
            return Snapshot(self.round, pack(None, "method"), pack(None, "federation"))

        def changed_since(self, number: int) -> np.ndarray:
            return np.flatnonzero(changed_in > number)

        def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]:
            return {int(c): ClientState({"model": np.float32([changed_in[c]])}, frozenset(["model"])) for c in clients}

    server: Any = Fake()
    for server.round in range(1, 31):
        changed_in[[*range(10), 10 + server.round]] = server.round
        checkpoints.write(server)
        manifest = json.loads(newest(tmp_path, "checkpoints/round-*.json").read_bytes())
        everyone = {client for _, clients in manifest["client_files"] for client in clients}
        assert everyone == set(np.flatnonzero(changed_in >= 0).tolist())
        assert sum(len(clients) for _, clients in manifest["client_files"]) <= 2 * len(everyone)


def test_what_has_travelled_is_remembered(serial_server: Callable[..., Server]) -> None:
    """Who has sent which layers decides what is counted later."""
    server = serial_server("local.steps=1", "method.name=fedavg")
    fed = server.fed
    fed.begin_round(1)
    fed.train(np.arange(6), keep=True)
    fed.mean(np.arange(4), part="backbone")
    state = unpack(pack(fed.state()), FederationState)
    assert state.unsent["model"].any(axis=1).all() and not state.unsent["model"].all(axis=1)[:4].any()
    states = fed.kept_states(np.arange(6))
    fed.restore(state, 1)
    fed.adopt(states)
    fed.begin_round(2)
    fed.collect(np.arange(6))
    head, whole = (sum(r.stop - r.start for r in fed.layout.ranges(part)) for part in ("head", "all"))
    buffers = fed.layout.size - fed.layout.parameters
    assert fed.ledger.bytes_up == 4 * (4 * head + 2 * (whole - buffers))


def test_by_default_checkpoints_take_a_fiftieth_of_the_time(tmp_path: Path) -> None:
    """On a clock of the test's own: rounds take 1 s, a checkpoint takes 0.5 s."""
    p = prepare(load_config(None, [*SMALL, "method.name=fedavg", "rounds=2000"]))
    now = [0.0]
    checkpoints = Checkpoints(Storage(tmp_path), p.config, p, clock=lambda: now[0])

    class Slow:
        def __init__(self) -> None:
            self.round = 0
            self.written: list[int] = []

        def snapshot(self) -> Any:
            now[0] += 0.5
            self.written.append(self.round)
            return Snapshot(self.round, pack(None, "method"), pack(None, "federation"))

        def changed_since(self, number: int) -> np.ndarray:
            return np.array([], int)

    server: Any = Slow()
    for server.round in range(1, 1001):
        now[0] += 1
        if checkpoints.is_due(server.round):
            checkpoints.write(server)
    assert len(server.written) == pytest.approx(1000 * 0.02 / 0.5, rel=0.1)
    assert server.written[0] == 1  # at once, since the cost of a checkpoint is not yet known
    assert max(np.diff(server.written)) < 60


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 rounds of which 4 are there, with checkpoints after 3 and 4."""
    folder = tmp_path_factory.mktemp("stopped")

    class Impatient(Screen):
        def show_round(self, record: Any) -> None:
            if record.number == 5:
                raise RayflError("enough")

    words = [*FEDAC, f"output.dir={folder}", "name=a", "rounds=6", "output.checkpoint_every=1"]
    with pytest.raises(RayflError, match="enough"):
        simulate(load_config(None, words), Impatient(quiet=True))
    return folder / "a"


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a flipped bit":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :])
    elif how == "a pickle":
        np.save(path.open("wb"), np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif how == "gone":
        path.unlink()


def newest(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[-1]


HOSTILE: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "a truncated checkpoint": (
        lambda f: spoil(newest(f, "checkpoints/round-*.json"), "truncated"),
        [],
        r"round-000004\.json is damaged.*remove it",
    ),
    "an empty checkpoint": (
        lambda f: spoil(newest(f, "checkpoints/round-*.json"), "empty"),
        [],
        r"round-000004\.json is damaged",
    ),
    "a checkpoint that is a list": (
        lambda f: newest(f, "checkpoints/round-*.json").write_text("[1, 2]"),
        [],
        r"no checkpoint of this rayfl",
    ),
    "a checkpoint of another version": (
        lambda f: rewrite(f, lambda tree: tree.update(rayfl_checkpoint=99)),
        [],
        r"not of version 1",
    ),
    "a checkpoint with a key too many": (
        lambda f: rewrite(f, lambda tree: tree.update(more=1)),
        [],
        r"no checkpoint of this rayfl \(more: Extra inputs",
    ),
    "a checkpoint that lacks a key": (lambda f: rewrite(f, lambda tree: tree.pop("checks")), [], r"\(checks: Field"),
    "a checkpoint of round 10**30": (
        lambda f: rewrite(f, lambda tree: tree.update(round=10**30)),
        [],
        r"no checkpoint of this rayfl \(round: ",
    ),
    "a checkpoint of a round far away": (
        lambda f: rewrite_as(f, "round-99999999.json", lambda tree: tree.update(round=99999999)),
        [],
        r"is of round 99999999, but the run has only 6 rounds",
    ),
    "a checkpoint under the name of another": (
        lambda f: rewrite_as(f, "round-000005.json", lambda tree: None),
        [],
        r"round-000005\.json is damaged.*it is of round 4",
    ),
    "a checkpoint whose round is text": (
        lambda f: rewrite(f, lambda tree: tree.update(round="4")),
        [],
        r"\(round: Input should be a valid integer",
    ),
    "a checkpoint whose config is a list": (
        lambda f: rewrite(f, lambda tree: tree.update(config=[])),
        [],
        r"\(config: ",
    ),
    "a checkpoint whose config is none": (
        lambda f: rewrite(f, lambda tree: tree.update(config={"rounds": "many", "x": 1})),
        [],
        r"round-000004\.json holds no config of this rayfl",
    ),
    "a checkpoint whose checks are numbers": (
        lambda f: rewrite(f, lambda tree: tree.update(checks=dict.fromkeys(tree["checks"], 1))),
        [],
        r"\(checks\.",
    ),
    "a checkpoint of brackets": (
        lambda f: newest(f, "checkpoints/round-*.json").write_text("[" * 100_000),
        [],
        r"no checkpoint of this rayfl",
    ),
    "a checkpoint that names a file elsewhere": (
        lambda f: rewrite(f, lambda tree: tree.update(server="../../precious.npz")),
        [],
        r"\(server: String should match pattern",
    ),
    "a checkpoint that names a client file elsewhere": (
        lambda f: rewrite(f, lambda tree: tree["client_files"].append(["../config.yaml", [1]])),
        [],
        r"\(client_files\.",
    ),
    "a checkpoint of clients that are not there": (
        lambda f: remake(f, "clients-*", lambda arrays: arrays["clients.0"].__iadd__(90), shift_clients),
        [],
        r"clients-\d+-\d+\.npz does not hold models of this run's clients \(other clients",
    ),
    "a checkpoint without the models of some clients": (
        lambda f: rewrite(f, drop_client_file),
        [],
        r"names no models for the clients",
    ),
    "a checkpoint whose clients are numbered from behind": (
        lambda f: remake(f, "clients-*", lambda arrays: arrays["clients.0"].__isub__(12)),
        [],
        r"\(other clients",
    ),
    "client models of another size": (
        lambda f: remake(f, "clients-*", lambda arrays: arrays.update({"models.0": arrays["models.0"][:, :-1]})),
        [],
        r"does not hold models of this run's clients \(float32 models of shape",
    ),
    "client models of another type": (
        lambda f: remake(f, "clients-*", lambda arrays: arrays.update({"models.0": arrays["models.0"].astype(int)})),
        [],
        r"does not hold models of this run's clients \(int64 models",
    ),
    "a client file without slots": (
        lambda f: remake(f, "clients-*", lambda arrays: arrays.pop("slots")),
        [],
        r"does not hold models of this run's clients \('slots'",
    ),
    "a server file that would fill the memory": (lambda f: inflate(f), [], r"cannot be read \(it is compressed"),
    "centres of another size": (
        lambda f: remake(f, "server-*", lambda a: a.update({"method.centres": a["method.centres"][:, :-1]})),
        [],
        r"does not hold the state of this method \(its clusters and models do not fit",
    ),
    "an embedding of another size": (
        lambda f: remake(f, "server-*", lambda a: a.update({"method.embedding": a["method.embedding"][:-1]})),
        [],
        r"does not hold the state of this method \(method\.embedding has the shape",
    ),
    "an assignment of fewer clients": (
        lambda f: remake(f, "server-*", lambda a: a.update({"method.assignment": a["method.assignment"][:-1]})),
        [],
        r"does not hold the state of this method \(its clusters and models do not fit",
    ),
    "text in place of the centres": (
        lambda f: rewrite(f, lambda tree: tree["method"]["fields"].update(centres="abc")),
        [],
        r"does not hold the state of this method \(TypeError: str where",
    ),
    "a list in place of a state": (
        lambda f: rewrite(f, lambda tree: tree.update(method={"fields": [1, 2]})),
        [],
        r"does not hold the state of this method",
    ),
    "a federation of other clients": (
        lambda f: remake(f, "server-*", lambda a: [a[k].__iadd__(90) for k in a if k.startswith("federation.kept")]),
        [],
        r"the checkpoint is of other clients or another network",
    ),
    "a federation of another network": (
        lambda f: remake(
            f, "server-*", lambda a: a.update({k: a[k][:, 1:] for k in a if k.startswith("federation.unsent")})
        ),
        [],
        r"the checkpoint is of other clients or another network",
    ),
    "a truncated server file": (
        lambda f: spoil(newest(f, "checkpoints/server-*"), "truncated"),
        [],
        r"server-000004\.npz is damaged.*remove round-000004\.json",
    ),
    "a server file with a flipped bit": (
        lambda f: spoil(newest(f, "checkpoints/server-*"), "a flipped bit"),
        [],
        r"server-000004\.npz is damaged",
    ),
    "a server file that is gone": (lambda f: spoil(newest(f, "checkpoints/server-*"), "gone"), [], r"is gone"),
    "a client file with a flipped bit": (
        lambda f: spoil(newest(f, "checkpoints/clients-*"), "a flipped bit"),
        [],
        r"clients-\d+-\d+\.npz is damaged",
    ),
    "a client file that is gone": (lambda f: spoil(newest(f, "checkpoints/clients-*"), "gone"), [], r"is gone"),
    "a pickle for a client file": (
        lambda f: spoil(newest(f, "checkpoints/clients-*"), "a pickle"),
        [],
        r"clients-\d+-\d+\.npz is damaged",
    ),
    "a pickle whose checksum was set right": (
        lambda f: forge(f),
        [],
        r"server-000004\.npz cannot be read",
    ),
    "swapped client files": (lambda f: swap(f), [], r"is damaged, or of another run"),
    "a state of another method": (
        lambda f: rewrite(f, lambda tree: tree.update(method={"fields": {"wrong": 1}})),
        [],
        r"does not hold the state of this method",
    ),
    "a checkpoint that names a class": (
        lambda f: rewrite(f, lambda tree: tree.update(method={"os.system": "true"})),
        [],
        r"does not hold the state of this method",
    ),
    "a truncated table": (
        lambda f: spoil(f / "rounds" / "part-00000.parquet", "truncated"),
        [],
        r"rounds/part-00000\.parquet is damaged",
    ),
    "an empty table": (
        lambda f: spoil(f / "clients" / "part-00000.parquet", "empty"),
        [],
        r"clients/part-00000\.parquet is damaged",
    ),
    "a foreign table": (
        lambda f: pd.DataFrame({"a": [1]}).to_parquet(f / "clusters" / "part-00000.parquet"),
        [],
        r"is no table of a run: it has other columns",
    ),
    "swapped tables": (
        lambda f: shutil.copy(f / "clients" / "part-00000.parquet", f / "clusters" / "part-00000.parquet"),
        [],
        r"clusters/part-00000\.parquet is no table of a run",
    ),
    "a table of another seed": (lambda f: relabel(f, seed=7), [], r"is of another run"),
    "a table twice": (
        lambda f: shutil.copy(f / "rounds" / "part-00000.parquet", f / "rounds" / "part-00001.parquet"),
        [],
        r"holds files of several runs.*or one of them twice",
    ),
    "a table under a strange name": (
        lambda f: (f / "rounds" / "part-00000.parquet").rename(f / "rounds" / "part-00007.parquet"),
        [],
        r"holds files that no run writes",
    ),
    "a table of a billion rounds": (lambda f: relabel(f, round=10**9), [], r"lacks rounds \[4, 5, 6, 7, 8\]"),
    "a table of rounds before the first": (lambda f: relabel(f, round=-1), [], r"holds files of several runs"),
    "rounds that are gone": (
        lambda f: spoil(f / "rounds" / "part-00000.parquet", "gone"),
        [],
        r"lacks rounds \[1, 2, 3, 4\]",
    ),
    "a config with another seed": (
        lambda f: (f / "config.yaml").write_text((f / "config.yaml").read_text().replace("seed: 0", "seed: 1")),
        [],
        r"seed=1: the run began with 0",
    ),
    "a config that is no YAML": (lambda f: (f / "config.yaml").write_text("a: [1"), [], r"not valid YAML"),
    "a config that is gone": (lambda f: (f / "config.yaml").unlink(), [], r"config\.yaml missing"),
    "another method": (lambda f: None, ["method.name=fedavg"], r"method\.name='fedavg': the run began with 'fedac'"),
    "another learning rate": (lambda f: None, ["local.lr=0.2"], r"local\.lr=0\.2: the run began with 0\.1"),
    "fewer rounds than are written": (lambda f: None, ["rounds=4"], r"5 rounds of the run are there, and no results"),
    "an unknown key": (lambda f: None, ["rouds=9"], r"did you mean 'rounds'"),
    "other data": (
        lambda f: rewrite(f, lambda tree: tree.update(data="0" * 32)),
        [],
        r"the data are not those that",
    ),
    "another initial model": (
        lambda f: rewrite(f, lambda tree: tree.update(model="0" * 32)),
        [],
        r"the initial model is not the one",
    ),
}


def rewrite(folder: Path, change: Callable[[dict], None]) -> None:
    path = newest(folder, "checkpoints/round-*.json")
    tree = json.loads(path.read_bytes())
    change(tree)
    if "check" in tree:
        tree["check"] = check_of(tree)
    path.write_text(json.dumps(tree))


def rewrite_as(folder: Path, name: str, change: Callable[[dict], None]) -> None:
    rewrite(folder, change)
    newest(folder, "checkpoints/round-*.json").rename(folder / "checkpoints" / name)


def remake(
    folder: Path,
    pattern: str,
    change: Callable[[dict[str, np.ndarray]], object],
    also: Callable[[dict, str], None] = lambda tree, name: None,
) -> None:
    """Change the arrays of a file that the last checkpoint names, and set length and checksum right."""
    path = newest(folder, f"checkpoints/{pattern}")
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    recheck(folder, path)
    rewrite(folder, lambda tree: also(tree, path.name))


def recheck(folder: Path, path: Path) -> None:
    data = path.read_bytes()
    rewrite(folder, lambda tree: tree["checks"].update({path.name: [len(data), zlib.crc32(data)]}))


def shift_clients(tree: dict, name: str) -> None:
    """Let the JSON name the same strange clients as the file does."""
    tree["client_files"] = [[n, [c + 90 for c in who] if n == name else who] for n, who in tree["client_files"]]


def drop_client_file(tree: dict) -> None:
    name, _ = tree["client_files"].pop()
    del tree["checks"][name]


def inflate(folder: Path) -> None:
    path = newest(folder, "checkpoints/server-*")
    np.savez_compressed(path, **{"method.centres": np.zeros(10**7)})
    recheck(folder, path)


def forge(folder: Path) -> None:
    """Put code where data belong, with the right length and checksum: it must still not be loaded."""
    path = newest(folder, "checkpoints/server-*")

    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {folder}/exploded",)

    np.savez(path, **{"method.centres": np.array([Bomb()], dtype=object)})  # type: ignore[arg-type]
    recheck(folder, path)


def swap(folder: Path) -> None:
    one, other = sorted(folder.glob("checkpoints/clients-*"))[-2:]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def relabel(folder: Path, seed: int | None = None, round: int | None = None) -> None:
    """Give all rows another seed, or the last one another round."""
    path = folder / "rounds" / "part-00000.parquet"
    table = pq.read_table(path)
    column, values = ("seed", [seed] * len(table)) if seed is not None else ("round", [*table["round"].to_pylist()])
    if round is not None:
        values[3:] = [round] + [round + n for n in range(1, len(values) - 3)]
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(values)), path)


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_input_gets_one_clear_error_and_nothing_is_overwritten(
    stopped: Path, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(stopped, folder)
    harm, words, told = HOSTILE[what]
    harm(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=told) as error:
        go_on(folder, *words)
    assert len(error.value.lines) == 1
    after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    after.pop(folder / ".lock", None)
    before.pop(folder / ".lock", None)
    assert after == before


def test_an_untouched_copy_of_that_run_goes_on(stopped: Path, tmp_path: Path, run: Runs) -> None:
    """So that what the hostile tests refuse is refused for the harm alone."""
    shutil.copytree(stopped, tmp_path / "a")
    assert_same(run("b", *FEDAC, "rounds=6"), go_on(tmp_path / "a"))


def test_after_removing_a_damaged_checkpoint_the_one_before_is_used(stopped: Path, tmp_path: Path, run: Runs) -> None:
    folder = tmp_path / "a"
    shutil.copytree(stopped, folder)
    spoil(newest(folder, "checkpoints/server-*"), "truncated")
    newest(folder, "checkpoints/round-*.json").unlink()
    assert_same(run("b", *FEDAC, "rounds=6"), go_on(folder))


def test_a_moved_run_keeps_its_name_in_every_row(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "elsewhere")
    assert set(go_on(tmp_path / "elsewhere").rounds["run"]) == {"a"}


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".", "", "line\nbreak"])
def test_names_that_would_leave_the_folder_are_refused(run: Runs, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be a folder"):
        simulate(load_config({"name": name, "output": {"dir": str(tmp_path)}}), Screen(quiet=True))
    assert not list(tmp_path.iterdir())


def test_shell_characters_in_names_are_only_characters(run: Runs, tmp_path: Path) -> None:
    name = "$(touch pwned); `touch pwned` && x"
    folder = tmp_path / "runs & more"
    words = [*SMALL, "rounds=2", "method.name=fedavg"]
    config = load_config({"name": name, "output": {"dir": str(folder)}}, words)
    path = Path(simulate(config, Screen(quiet=True)).path)
    assert path == folder / name
    assert len(go_on(path, "rounds=3").rounds) == 3
    assert not [p for p in [*tmp_path.rglob("pwned"), Path("pwned")] if p.exists()]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a read-only disk takes root")
def test_a_read_only_folder_is_told_before_the_run(stopped: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    shutil.copytree(stopped, disk / "a")
    if subprocess.run(["mount", "--bind", str(disk), str(disk)], check=False).returncode:
        pytest.skip("this machine does not let one mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
        with pytest.raises(InputError, match=r"cannot be written to: Read-only file system"):
            simulate(load_config(None, [*SMALL, f"output.dir={disk}"]), Screen(quiet=True))
        with pytest.raises(InputError, match=r"cannot be written to: Read-only file system"):
            go_on(disk / "a")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_jumps_changes_nothing(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = run("a", *FEDAC, "rounds=5")
    jumps = iter(np.random.default_rng(0).integers(-(10**9), 10**9, 10**6).tolist())
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    jumpy = run("b", *FEDAC, "rounds=4", "output.checkpoint_every=1")
    assert (jumpy.rounds["seconds_total"] > 0).all() and jumpy.rounds["seconds_total"].max() < 100
    assert_same(reference, go_on(jumpy, "rounds=5"))


@pytest.mark.parametrize("gone", [["rounds"], ["rounds", "clusters", "clients"]])
def test_a_run_killed_before_its_first_row_can_be_resumed_too(run: Runs, tmp_path: Path, gone: list[str]) -> None:
    words = [*FEDAC, "rounds=3", "output.checkpoint_every=0"]
    begun = Path(run("a", *words).path)
    for table in gone:
        shutil.rmtree(begun / table)
    for table in {"clients", "clusters"} - set(gone):
        pq.write_table(TABLES[table].empty_table(), begun / table / "part-00000.parquet")
    assert_same(run("b", *words), go_on(begun))


def test_two_processes_do_not_write_to_one_run(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "a")
    with Storage(tmp_path / "a").locked(), pytest.raises(InputError, match="being written to by another process"):
        go_on(tmp_path / "a")


@pytest.mark.parametrize("fault", [errno.ENOSYS, errno.ENOLCK, errno.EIO])
def test_a_network_file_system_without_locks_is_written_to_all_the_same(
    run: Runs, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    """Lustre is often mounted without locks. Other failures to lock are reported."""

    def unsupported(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    if fault == errno.EIO:
        with pytest.raises(RayflError, match="Input/output error"):
            run("a", *FEDAC, "rounds=1")
    else:
        assert len(run("a", *FEDAC, "rounds=1").rounds) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_ends_the_run_with_one_line_and_leaves_what_was_written(run: Runs, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "t", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let one mount")
    try:
        config = load_config(None, [*FEDAC, f"output.dir={disk}", "name=a", "rounds=40", "output.checkpoint_every=1"])
        with pytest.raises(RayflError, match=r"cannot be written to: No space left on device; fix that.*rayfl resume"):
            simulate(config, Screen(quiet=True))
        shutil.copytree(disk / "a", tmp_path / "rescued")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    rescued = load(tmp_path / "rescued")
    reference = run("b", *FEDAC, "rounds=40")
    count = len(rescued.rounds)
    for ours, theirs in zip(tables(rescued), tables(reference), strict=True):
        part = theirs[theirs["round"] <= count].reset_index(drop=True)
        pd.testing.assert_frame_equal(ours[ours["round"] <= count], part, check_exact=True)
    assert_same(reference, go_on(rescued))


# -- signals -----------------------------------------------------------------------------------------------------


def started(folder: Path, *words: str) -> Forked:
    return Forked(["-m", "rayfl.cli", "run", f"output.dir={folder}", "name=a", *words], folder)


def wait_for_rounds(folder: Path, count: int, process: Forked | None = None, timeout: float = 120) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            if len(load(folder / "a").rounds) >= count:
                return
        except InputError:
            pass
        assert process is None or process.poll() is None, process.communicate(0)[1]
        time.sleep(0.05)
    raise TimeoutError(f"no {count} rounds in {folder} after {timeout} s")


LONG = [*FEDAC, "rounds=400", "output.checkpoint_every=1000"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_the_round_with_a_checkpoint_of_it(tmp_path: Path, number: int, code: int) -> None:
    process = started(tmp_path, *LONG)
    wait_for_rounds(tmp_path, 3, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "stopping after this round; Ctrl-C again leaves at once" in err
    done = len(load(tmp_path / "a").rounds)
    assert 3 <= done < 400
    assert f"go on after round {done} with: rayfl resume {tmp_path}/a" in err
    assert "Traceback" not in err


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path, own_code: Callable[[str, str], None]) -> None:
    (tmp_path / "sleepy.py").write_text("""
import time
from rayfl.methods.fedavg import FedAvg

class Sleepy(FedAvg):
    def round(self, cohort):
        super().round(cohort)
        time.sleep(60 if self.fed.round == 3 else 0)
""")
    process = started(tmp_path, *SMALL, "rounds=5", "method.name=sleepy:Sleepy")
    wait_for_rounds(tmp_path, 1, process)
    time.sleep(2)  # round 3 has begun; the row of round 2 is written when the run ends
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the round
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode == 130, err
    assert "rayfl resume" in err and "Traceback" not in err
    assert len(load(tmp_path / "a").rounds) == 2
