"""Sweeps: the grid, the same bits as runs one by one, and what is left after failures, signals and kill -9."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from faults import alive, children, kill, wait_until
from forks import Forked
from tables import assert_same

import rayfl
from rayfl.config import load_config
from rayfl.errors import InputError, RayflError
from rayfl.launch import simulate
from rayfl.results import Run, load
from rayfl.results.status import read_status
from rayfl.simulation.screen import Screen
from rayfl.sweeping.grid import read_grid
from rayfl.sweeping.plan import PlannedRun, planned, with_names
from rayfl.sweeping.sweep import placed

SMALL = """
rounds: 4
partition: {clients: 6}
model: {name: mlp}
method: {name: fedac, tune_from: 2}
local: {steps: 2}
sweep:
  method.name: [fedavg, {method.name: ifca, method.clusters: 2}]
  seed: 0..1
"""


def names(given: object, *words: str) -> list[str]:
    return [point.name for point in read_grid(given, list(words)).points]  # type: ignore[arg-type]


# -- the grid ----------------------------------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_axes_in_their_order() -> None:
    grid = read_grid({"rounds": 3, "sweep": {"method.name": ["fedavg", "local"], "seed": [0, 7]}})
    assert grid.common == {"rounds": 3}
    assert [point.overrides for point in grid.points] == [
        {"method.name": "fedavg", "seed": 0},
        {"method.name": "fedavg", "seed": 7},
        {"method.name": "local", "seed": 0},
        {"method.name": "local", "seed": 7},
    ]


def test_values_on_the_command_line_make_axes_and_replace_those_of_the_file() -> None:
    tree = {"sweep": {"seed": [5, 6]}}
    assert names(tree, "seed=0..2") == ["seed0", "seed1", "seed2"]
    assert names(tree, "seed=9") == ["seed9"]
    assert names({}, "partition.alpha=0.1,1.0", "seed=0,1") == [
        "alpha_0.1-seed0",
        "alpha_0.1-seed1",
        "alpha_1.0-seed0",
        "alpha_1.0-seed1",
    ]
    lists = read_grid(None, ["partition.angles=[0, 180],[0, 90]", 'name="a,b"', "rounds=5"])
    assert [point.overrides["partition.angles"] for point in lists.points] == [[0, 180], [0, 90]]
    assert lists.overrides == {"name": "a,b", "rounds": 5}


def test_entries_may_be_whole_groups() -> None:
    groups = [{"method.name": "fesem", "method.clusters": 10}, {"method.name": "fedavg"}]
    assert names({"sweep": groups}) == ["fesem-clusters_10", "fedavg"]
    assert names({"sweep": {"method.name": ["local", groups[0]]}}) == ["local", "fesem-clusters_10"]
    assert names({"sweep": {"method": [{"name": "fesem", "clusters": 3}]}}) == ["fesem-clusters_3"]


def test_names_are_folders_that_differ_and_stay_the_same() -> None:
    tree = {"sweep": {"method.name": ["my_code:Own", "other:Own"], "seed": [0]}}
    first = names(tree)
    assert len(set(first)) == 2
    assert all(name.startswith("Own-seed0-") for name in first)
    assert first == names(tree)
    assert first[1:] == names({"sweep": {"method.name": ["x:A", "my_code:Own", "other:Own"], "seed": [0]}})[2:]
    long = names({"sweep": {"data.path": ["a" * 300, "b" * 300]}})
    assert all(len(name) < 150 for name in long)


FAULTS = {
    "no list": ({"sweep": {"seed": 3}}, [], r"sweep\.seed=3: write a list of values"),
    "an empty list": ({"sweep": {"seed": []}}, [], r"sweep\.seed=\[\]: write a list"),
    "a word": ({"sweep": "all"}, [], r"sweep='all': write keys with lists"),
    "a range backwards": ({}, ["seed=4..0"], r"4\.\.0 is no range"),
    "too many": ({}, ["seed=0..9999", "rounds=1,2"], r"20,000 runs, more than 10,000"),
    "the same twice": ({}, ["seed=1,1"], r"the same run 2 times"),
    "a key of two axes": (
        {"sweep": {"method.name": ["local"], "a": [{"method.name": "fedavg"}]}},
        [],
        r"sweep\.a sets method\.name, which another axis sets too",
    ),
    "an empty group": ({"sweep": [{}]}, [], r"empty group"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_grid_that_cannot_be_is_refused_in_one_line(what: str) -> None:
    tree, words, message = FAULTS[what]
    with pytest.raises(InputError, match=message) as error:
        read_grid(tree, words)
    assert len(error.value.lines) == 1


def test_every_run_is_checked_before_any_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)nobody-seed0: method\.name='nobody'.*nobody-seed1: method\.name"):
        rayfl.sweep({"output": {"dir": str(tmp_path)}}, {"method.name": ["fedavg", "nobody"], "seed": range(2)})
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_runs_is_chosen_by_names_and_patterns(tmp_path: Path) -> None:
    grid = {"method.name": ["fedavg", "local"], "seed": [0, 1]}
    runs = planned(read_grid({"output": {"dir": str(tmp_path)}, "sweep": grid}), "part")
    for patterns, wanted in (
        ([], ["fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1"]),
        (["*seed1"], ["fedavg-seed1", "local-seed1"]),
        (["local*", "fedavg-seed0"], ["fedavg-seed0", "local-seed0", "local-seed1"]),
    ):
        assert [run.name for run in with_names(runs, patterns)] == wanted
    with pytest.raises(
        InputError, match="no run of this sweep has a name like 'seed0': the names are fedavg-seed0, fed"
    ):
        with_names(runs, ["local*", "seed0"])


def test_run_says_that_a_file_with_a_grid_is_for_sweep(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALL)
    with pytest.raises(InputError, match=r"a\.yaml' out with 'rayfl sweep'"):
        load_config(tmp_path / "a.yaml")


# -- carried out -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


def start(folder: Path, *words: str) -> Forked:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return Forked(["-m", "rayfl.cli", "sweep", "small.yaml", *words], folder, environment)


def finish(process: Forked, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    return out, err


def alone(folder: Path, run: Run) -> Run:
    """The same run by itself, in this process."""
    config = load_config(run.config, {"output.dir": str(folder / "alone"), "federation": "serial"})
    return simulate(config, Screen(quiet=True))


ALL = ["fedavg-seed0", "fedavg-seed1", "ifca-clusters_2-seed0", "ifca-clusters_2-seed1"]


def test_a_sweep_gives_the_bits_of_its_runs_one_by_one_and_is_not_done_twice(folder: Path) -> None:
    out, err = finish(start(folder))
    assert out.splitlines()[-1] == str(folder / "runs" / "small")
    assert "4 complete, 0 failed" in err
    runs = {run.config.name: run for run in rayfl.load_all(folder / "runs")}
    assert sorted(runs) == ALL
    for name, run in runs.items():
        assert f"{name}: done  accuracy {run.rounds['accuracy'].iloc[-1]:.3f}\n" in err, "of the last round"
        assert run.config.federation == "ray", "the config is the user's, wherever the clients trained"
        assert_same(alone(folder, run), run)
        assert (run.config.method.name, run.config.seed) == (name.partition("-")[0], int(name[-1]))
    written = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.parquet")}
    _, again = finish(start(folder))
    assert again.count("skipped") == 4
    assert written == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*.parquet")}
    # Two of the runs: fewer runs than cores would start a Ray.
    _, err = finish(start(folder, "seed=2..5", "method.name=fedavg", "--only", "*seed2", "--only", "*seed3"))
    assert "2 complete, 0 failed" in err
    assert load(folder / "runs/small/fedavg-seed2").finished
    assert not (folder / "runs/small/fedavg-seed4").exists()
    _, err = finish(start(folder, "local.lr=0.5"), code=2)
    assert "fedavg-seed0: local.lr=0.5: the run began with" in err


def test_kill_9_in_the_middle_leaves_nothing_running_and_the_sweep_goes_on_to_the_same_tables(folder: Path) -> None:
    words = ["rounds=40", "output.checkpoint_every=3"]
    process = start(folder, *words)
    first = folder / "runs/small/fedavg-seed0"
    wait_until(lambda: first.exists() and len(_rounds(first)) > 4, "five rounds", 120)
    below = [pid for pid in children(process.pid) if pid != process.pid]
    assert below
    kill(process.pid)
    process.wait(60)
    wait_until(lambda: not any(alive(pid) for pid in below), "the end of the runners", 20)
    before = len(_rounds(first))
    finish(start(folder, *words))
    runs = rayfl.load_all(folder / "runs")
    assert [run.finished for run in runs] == [True] * 4
    assert before < 40, "it was killed in the middle"
    for run in runs:
        assert_same(alone(folder, run), run)


def _rounds(path: Path) -> list[int]:
    try:
        return list(load(path).rounds["round"])
    except InputError:
        return []


def test_ctrl_c_ends_the_rounds_in_hand_and_says_how_to_go_on(folder: Path) -> None:
    process = start(folder, "rounds=2000", "seed=0", "--jobs", "1", "--only", "fedavg*")
    first = folder / "runs/small/fedavg-seed0"
    wait_until(lambda: len(_rounds(first)) > 2, "rounds", 120)
    process.send_signal(signal.SIGINT)
    _, err = finish(process, code=130)
    assert "go on with: rayfl sweep small.yaml rounds=2000 seed=0 --only 'fedavg*'\n" in err
    assert "Traceback" not in err
    assert list((first / "checkpoints").glob("*.json"))


FAILING = """
from rayfl.methods.fedavg import FedAvg
from pathlib import Path

class Fragile(FedAvg):
    def round(self, cohort):
        super().round(cohort)
        if self.fed.round == 2 and not Path(__file__).with_name("repaired").exists():
            raise RuntimeError("a screw is loose")
"""


def test_one_failure_does_not_stop_the_rest_and_is_tried_again_only_when_asked(folder: Path) -> None:
    (folder / "fragile.py").write_text(FAILING)
    words = ["method.name=fragile:Fragile,local", "seed=0", "--jobs", "1"]
    out, err = finish(start(folder, *words), code=1)
    assert "error: Fragile-seed0: method.name=fragile:Fragile failed in round 2" in err
    assert "a screw is loose" in err
    assert "1 complete, 1 failed" in err
    assert re.search(r"^\d/2  Fragile-seed0: failed  RuntimeError: a screw is loose$", err, re.M), "not only where"
    (told,) = [s.problem for s in map(read_status, rayfl.load_all(folder / "runs")) if s.state == "failed"]
    assert told == "RuntimeError: a screw is loose"
    assert out.splitlines()[-1] == str(folder / "runs" / "small")
    assert load(folder / "runs/small/local-seed0").finished
    (folder / "repaired").touch()
    _, err = finish(start(folder, *words), code=1)
    assert "a screw is loose" in err, "the reason of the earlier failure is shown again"
    _, err = finish(start(folder, *words, "--retry"))
    assert load(folder / "runs/small/Fragile-seed0").finished
    assert not list((folder / "runs/small/failures").glob("*"))


def test_a_runner_that_is_killed_costs_its_run_and_no_other(folder: Path) -> None:
    (folder / "small.yaml").write_text(SMALL.replace("[fedavg,", "[{method.name: fedavg, rounds: 2000},"))
    process = start(folder, "seed=0", "--jobs", "1")
    first = folder / "runs/small/fedavg-rounds_2000-seed0"
    wait_until(lambda: len(_rounds(first)) > 2, "rounds", 120)
    (runner,) = [pid for pid, title in children(process.pid).items() if "sweeping.runner" in title]
    kill(runner)
    _, err = finish(process, code=1)
    assert "error: fedavg-rounds_2000-seed0: its process was killed (signal 9)" in err
    assert "1 complete, 1 failed" in err


def test_two_sweeps_do_not_share_a_folder_at_the_same_time(folder: Path) -> None:
    process = start(folder, "rounds=2000", "seed=0", "--jobs", "1")
    wait_until(lambda: (folder / "runs/small/sweep.json").exists(), "the sweep", 60)
    _, err = finish(start(folder, "seed=1"), code=2)
    assert "is being written to by another process" in err
    process.send_signal(signal.SIGTERM)
    finish(process, code=143)


def test_a_folder_that_is_not_of_the_sweep_is_left_alone(folder: Path) -> None:
    config = load_config(None, {"name": "fedavg-seed0", "output.dir": str(folder / "runs/small"), "rounds": 1})
    simulate(
        load_config(config, {"federation": "serial", "local.steps": 1, "partition.clients": 4}), Screen(quiet=True)
    )
    _, err = finish(start(folder), code=2)
    assert "fedavg-seed0 exists and does not belong to this sweep" in err


# -- where runs go -----------------------------------------------------------------------------------------------


def test_on_ray_runs_side_by_side_share_the_cluster_and_give_the_same_bits(
    own_actors: None, forked_runners: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    config = {"rounds": 3, "partition": {"clients": 6}, "model": {"name": "mlp"}, "local": {"steps": 2}}
    runs = rayfl.sweep(
        {**config, "name": "s", "output": {"dir": str(tmp_path)}, "method": {"name": "fedavg"}},
        {"seed": range(3)},
        quiet=True,
        jobs=2,
    )
    assert [run.config.seed for run in runs] == [0, 1, 2]
    for run in runs:
        assert_same(alone(tmp_path, run), run)


def spread(words: list[str], jobs: int | None = None) -> tuple[int, int]:
    grid = read_grid({"method": {"name": "fedavg"}}, words)
    with placed(planned(grid, "x"), jobs) as found:
        return found.jobs, found.actors


def test_runs_are_spread_over_what_there_is(own_actors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's Ray has four CPUs and two GPUs."""
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    assert spread(["seed=0..3"]) == (4, 1)
    assert spread(["seed=0..1"]) == (2, 2)
    assert spread(["seed=0"]) == (1, 4)
    assert spread(["seed=0..9", "ray.actors=2"]) == (2, 2)
    assert spread(["seed=0..9", "ray.actors_per_gpu=1"]) == (2, 1)
    assert spread(["seed=0..9"], jobs=3) == (3, 1)
    assert spread(["seed=0..9", "federation=serial"], jobs=1) == (1, 0)
    with pytest.raises(InputError, match=r"ray\.actors=9 do not fit"):
        spread(["seed=0..9", "ray.actors=9"])
    monkeypatch.delenv("RAY_ADDRESS")
    assert spread(["seed=0..99"])[1] == 0, "on one machine, a process for each run will do"


def test_from_python_failures_are_an_error_that_names_them(forked_runners: None, tmp_path: Path) -> None:
    config = {"rounds": 1, "partition": {"clients": 4}, "local": {"steps": 1}, "output": {"dir": str(tmp_path)}}
    grid = {"partition.alpha": [0.1], "partition.kind": ["dirichlet"], "partition.clients": [4, 5000]}
    with pytest.raises(RayflError, match=r"failed runs in .*:\n.*clients_5000: "):
        rayfl.sweep({**config, "method": {"name": "fedavg"}}, grid, quiet=True, jobs=1)
    manifest = json.loads((tmp_path / "sweep/sweep.json").read_text())
    assert len(manifest["runs"]) == 2
    assert isinstance(planned(read_grid(config), "s")[0], PlannedRun)
