"""Run folders that others write to, or that came from somewhere else: no row is lost, nothing outside is touched."""

import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from tables import assert_same

import rayfl
from rayfl.config import load_config
from rayfl.errors import InputError, RayflError
from rayfl.launch import resume, simulate
from rayfl.results import Run, Storage, load
from rayfl.simulation import folder as run_folder
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord

SMALL = ["federation=serial", "data.limit=480", "partition.clients=12", "local.steps=2", "method.name=ditto"]


class Meddler(Screen):
    """Does something when a line that begins with certain words is said."""

    def __init__(self, words: str, deed: Callable[[], object]) -> None:
        super().__init__(quiet=True)
        self._words, self._deed = words, deed

    def say(self, text: str) -> None:
        super().say(text)
        if text.startswith(self._words):
            self._deed()


class Breaker(Screen):
    """Does something after a round."""

    def __init__(self, number: int, deed: Callable[[], object]) -> None:
        super().__init__(quiet=True)
        self._number, self._deed = number, deed

    def show_round(self, record: RoundRecord) -> None:
        super().show_round(record)
        if record.number == self._number:
            self._deed()


def run(folder: str | Path, *words: str, screen: Screen | None = None) -> Run:
    return simulate(load_config(None, [*SMALL, f"output.dir={folder}", *words]), screen or Screen(quiet=True))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 rounds of which 6 are there, with checkpoints after 4 and 5."""
    folder = tmp_path_factory.mktemp("begun")

    def enough() -> None:
        raise RayflError("enough")

    with pytest.raises(RayflError, match="enough"):
        run(folder, "name=a", "rounds=8", "output.checkpoint_every=1", screen=Breaker(6, enough))
    return folder / "a"


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    """A copy of it, to be harmed."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


# -- two at once -------------------------------------------------------------------------------------------------


def test_of_two_resumes_at_once_one_is_refused_and_no_row_is_lost(tmp_path: Path) -> None:
    """The second comes when the first has read how far the run is, but has not yet run a round."""
    short = run(tmp_path, "name=a", "rounds=3", "output.checkpoint_every=0")
    refused = []

    def resume_too() -> None:
        with pytest.raises(InputError, match="being written to by another process") as error:
            resume(short.path, ["rounds=9"], Screen(quiet=True))
        refused.append(error)

    first = resume(short.path, ["rounds=5"], Meddler("going on after round", resume_too))
    assert len(refused) == 1
    assert_same(run(tmp_path, "name=b", "rounds=5"), first)
    assert load(short.path).config.rounds == 5


def test_a_run_whose_name_was_taken_while_it_started_leaves_that_folder_as_it_is(tmp_path: Path) -> None:
    taken: dict[Path, bytes] = {}

    def be_faster() -> None:
        taken.update(contents(Path(run(tmp_path, "name=a", "rounds=2", "seed=1").path)))

    with pytest.raises(InputError, match="exists already, and results are never overwritten"):
        run(tmp_path, "name=a", "rounds=3", "seed=2", screen=Meddler("training:", be_faster))
    assert taken
    assert contents(tmp_path / "a") == taken


@pytest.mark.parametrize("where", ["folder", "object store"])
def test_runs_without_a_name_in_the_same_second_get_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Standing(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Standing":
            return cls(2030, 1, 1)

    monkeypatch.setattr(run_folder, "datetime", Standing)
    output = str(tmp_path) if where == "folder" else f"memory://{uuid.uuid4().hex}"
    runs: list[Run] = []
    screen = Meddler("training:", lambda: runs.append(run(output, "rounds=2")))
    runs.append(run(output, "rounds=3", screen=screen))
    assert len({r.path for r in runs}) == 2
    assert [len(load(r.path).rounds) for r in runs] == [2, 3]
    assert all("ditto-seed0-20300101-000000" in r.path for r in runs)


def test_a_folder_is_given_to_only_one_of_many_who_want_it(tmp_path: Path) -> None:
    for attempt in range(20):
        gate = threading.Barrier(8)
        won: list[bool] = []

        def claim(storage: Storage, gate: threading.Barrier = gate, won: list[bool] = won) -> None:
            gate.wait(10)
            won.append(storage.claim("first", b"there"))

        threads = [threading.Thread(target=claim, args=(Storage(tmp_path / str(attempt)),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(won) == [False] * 7 + [True]


# -- links -------------------------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of somebody's, which is no business of ours."""
    outside = tmp_path / "precious"
    outside.mkdir()
    for name in ("round-000001.json", "server-000001.npz", "clients-000001-00000.npz", "thesis.txt"):
        (outside / name).write_text("years of work")
    return outside


LINKED = ["config.yaml", "rounds", "clients", "clusters", "checkpoints", "rounds/part-00000.parquet"]
LINKED += ["checkpoints/round-000005.json", "checkpoints/server-000005.npz"]


@pytest.mark.parametrize("what", LINKED)
def test_a_link_in_a_run_folder_is_refused_even_if_it_leads_to_the_right_thing(
    folder: Path, tmp_path: Path, what: str
) -> None:
    outside = tmp_path / "outside"
    (folder / what).rename(outside)
    (folder / what).symlink_to(outside)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=rf"{what} is a link, and links in a run folder are not followed") as error:
        resume(folder, [], Screen(quiet=True))
    assert len(error.value.lines) == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("what", ["a file", "nothing", "a folder"])
def test_a_lock_that_is_a_link_harms_nothing(folder: Path, precious: Path, what: str) -> None:
    (folder / ".lock").unlink()
    target = {"a file": precious / "thesis.txt", "nothing": precious / "new", "a folder": precious}[what]
    (folder / ".lock").symlink_to(target)
    before = contents(precious)
    with pytest.raises(InputError, match=r"\.lock is a link"):
        resume(folder, [], Screen(quiet=True))
    assert contents(precious) == before


@pytest.mark.parametrize("name", [".lock", "config.yaml", "checkpoints/round-000005.json"])
def test_a_pipe_in_place_of_a_file_is_told_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=rf"{name} is not a file"):
        resume(folder, [], Screen(quiet=True))


def test_checkpoints_that_are_a_link_let_nothing_outside_be_pruned(folder: Path, precious: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(precious)
    before = contents(precious)
    with pytest.raises(InputError, match="checkpoints is a link"):
        resume(folder, ["output.checkpoint_every=1"], Screen(quiet=True))
    assert contents(precious) == before


def test_a_run_folder_may_itself_be_reached_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)
    assert len(resume(tmp_path / "latest", [], Screen(quiet=True)).rounds) == 8


# -- a folder that goes away -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_folder_deleted_during_a_run_ends_it_with_a_message_and_stays_deleted(tmp_path: Path, what: str) -> None:
    def delete() -> None:
        shutil.rmtree(tmp_path / "a")
        if what == "replaced":
            (tmp_path / "a" / "rounds").mkdir(parents=True)

    with pytest.raises(RayflError, match=r"/a was deleted, moved or replaced while the run was writing to it") as error:
        run(tmp_path, "name=a", "rounds=6", "output.checkpoint_every=1", screen=Breaker(3, delete))
    assert error.value.exit_code == 1 and "resume" not in str(error.value)
    assert (tmp_path / "a").exists() == (what == "replaced")
    assert not contents(tmp_path)


def test_tables_deleted_during_a_run_end_it_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(RayflError, match=r"cannot be written to: No such file or directory"):
        screen = Breaker(3, lambda: shutil.rmtree(tmp_path / "a" / "clients"))
        run(tmp_path, "name=a", "rounds=6", "output.checkpoint_every=1", screen=screen)
    assert not (tmp_path / "a" / "clients").exists()


# -- code that lies in a folder ----------------------------------------------------------------------------------

PLANTED = ["pandas", "torch", "torchvision", "scipy", "sklearn", "pyarrow", "yaml", "numpy", "pydantic", "ray", "rich"]
PLANTED += ["typer", "threadpoolctl", "fsspec", "matplotlib", "sitecustomize", "setproctitle", "psutil", "random"]


def plant(folder: Path) -> Path:
    """Put modules into a folder that have names which rayfl or Ray import; return what they would write to."""
    trace = folder / "trace"
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(trace)!r}, 'a').write({name + chr(10)!r})\nraise SystemExit(9)\n"
        )
    return trace


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Type a command of rayfl in a folder. The script itself: `python -m` would put the folder on the path."""
    script = Path(sys.executable).with_name("rayfl")
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    environment["PYTHONPATH"] = str(Path(rayfl.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(script), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_no_code_is_imported_from_a_run_folder_that_one_is_in(folder: Path) -> None:
    trace = plant(folder)
    done = typed(folder, "resume", ".")
    assert not trace.exists(), trace.read_text()
    assert done.returncode == 0, done.stderr
    assert len(load(folder).rounds) == 8


@pytest.mark.slow
def test_code_that_is_named_is_found_in_the_current_folder_and_on_actors_but_hides_no_package(tmp_path: Path) -> None:
    trace = plant(tmp_path)
    (tmp_path / "my_method.py").write_text("from rayfl.methods.fedavg import FedAvg\nclass Mine(FedAvg): pass\n")
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    named = ["method.name=my_method:Mine", "model.name=my_net:Net"]
    done = typed(tmp_path, "run", *named, "rounds=2", "local.steps=2", "ray.actors=1", "name=a")
    assert not trace.exists(), trace.read_text()
    assert done.returncode == 0, done.stderr
    assert len(load(tmp_path / "runs" / "a").rounds) == 2
