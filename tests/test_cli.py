"""The commands as a user types them: what they print, their exit codes, and what they leave behind."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rayfl
from rayfl import cli

Typed = tuple[int, str, str]


@pytest.fixture
def rayfl_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Typed]:
    """Type `rayfl ...` in an empty folder; return the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "nothing_here"))

    def typed(*words: str) -> Typed:
        monkeypatch.setattr(sys, "argv", ["rayfl", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return typed


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    contents = {"train_images": images, "train_labels": np.arange(60) % 3} | arrays
    np.savez(path, **contents)


def files_of_bad_input(folder: Path) -> None:
    (folder / "broken.yaml").write_text("rounds: [1\n")
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    write_npz(folder / "small.npz")
    np.savez(folder / "keys.npz", pictures=np.zeros(3))
    write_npz(folder / "wide.npz", train_images=np.zeros((60, 8, 6), np.uint8))
    pd.DataFrame({"a": [1.0, 2.0], "kind": [0, 1]}).to_parquet(folder / "table.parquet")
    pd.DataFrame({"a": [1.0, None], "label": [0, 1]}).to_parquet(folder / "holes.parquet")
    (folder / "empty_images").mkdir()
    (folder / "a_file").write_text("in the way")
    (folder / "taken" / "mine").mkdir(parents=True)


BAD = {
    "an unknown key": (["rouds=3"], r"did you mean 'rounds'"),
    "a wrong type": (["rounds=many"], r"rounds='many'"),
    "a word that is no override": (["rounds=3", "serial"], r"'serial' is not an override"),
    "a config file that is not there": (["none.yaml"], r"none\.yaml cannot be read"),
    "YAML that is none": (["broken.yaml"], r"not valid YAML"),
    "an unknown method": (["method.name=fedavgg"], r"did you mean 'fedavg'"),
    "an option of another method": (["method.name=fedavg", "method.mu=1"], r"method\.mu=1.*no key 'mu'"),
    "a method's option out of range": (["method.mu=-1"], r"method\.mu=-1"),
    "a method that cannot be imported": (["method.name=not.there:X"], r"cannot import not\.there"),
    "a class that is no method": (["method.name=pathlib:Path"], r"not a subclass"),
    "a method that needs more clients": (["participation.count=1"], r"cohort of 1.*2 or more"),
    "an unknown model": (["model.name=digit_cnn"], r"did you mean 'digits_cnn'"),
    "a model too large for the images": (["model.name=thesis_cifar10"], r"thesis_cifar10.*8x8"),
    "a head that is not there": (["model.head=top"], r"model\.head='top'"),
    "data that is not there": (["data.source=npz", "data.path=gone.npz"], r"gone\.npz"),
    "a torn file": (["data.source=npz", "data.path=torn.npz"], r"torn\.npz"),
    "a file with other keys": (["data.source=npz", "data.path=keys.npz"], r"train_images"),
    "a table without labels": (["data.source=parquet", "data.path=table.parquet"], r"data\.label"),
    "a table with holes": (["data.source=parquet", "data.path=holes.parquet"], r"holes\.parquet"),
    "a folder without images": (["data.source=image_folder", "data.path=empty_images"], r"empty_images"),
    "more clients than samples": (["partition.clients=5000"], r"partition\.clients=5000"),
    "turning what is not square": (["data.source=npz", "data.path=wide.npz"], r"rotation"),
    "more classes than there are": (["partition={kind: classes, classes: 11}"], r"partition\.classes=11"),
    "a test split that is not there": (["partition.test=official"], r"partition\.test"),
    "owners that are not known": (["partition={kind: natural, column: writer}"], r"partition\.column"),
    "an output folder that is a file": (["output.dir=a_file"], r"a_file"),
    "a run that is there already": (["output.dir=taken", "name=mine"], r"never overwritten"),
    "more actors than fit": (["ray.actors=99"], r"ray\.actors=99.*use ray\.actors=4"),
    "GPUs that cannot be cut so": (["ray.gpus_per_actor=4"], r"no client actor fits.*4 GPUs"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing_behind(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, ray_session: None, what: str
) -> None:
    files_of_bad_input(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words, told = BAD[what]
    code, out, err = rayfl_typed("run", *words)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2, err
    assert len(errors) == 1, err
    assert re.search(told, errors[0]), errors[0]
    assert "Traceback" not in err
    assert not out
    assert sorted(tmp_path.rglob("*")) == before


def test_an_address_where_no_ray_is_gives_one_line(tmp_path: Path) -> None:
    """In a process of its own: this one has a Ray, which would be used."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-m", "rayfl.cli", "run", "ray.address=127.0.0.1:1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: ray.address=127.0.0.1:1: no Ray cluster answers there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_run_prints_progress_a_table_and_on_its_last_line_the_folder(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, ray_session: None
) -> None:
    code, out, err = rayfl_typed("run", "rounds=3", "local.steps=1", "ray.actors=1", "seed=4")
    assert code == 0, err
    assert re.search(r"round 3/3  accuracy 0\.\d+  K \d \([\d,]+\)  ARI -?\d\.\d+  \d+\.\d+ s/round", err)
    assert "after 3 rounds" in out
    run = rayfl.load(out.splitlines()[-1])
    assert run.config.seed == 4
    assert run.config.method.options["tuning"] == "silhouette"  # the resolved config has the defaults too
    assert len(run.rounds) == 3
    assert len(pd.read_parquet(Path(run.path) / "clients")) == 3 * 20


def test_a_run_that_fails_after_its_start_exits_with_1(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    code, _, err = rayfl_typed("run", "federation=serial", "local.lr=1e6", "method.name=fedavg")
    assert code == 1
    assert re.search(r"error: .*lower local\.lr", err)


EXITS = {
    "the import of a method": ("method.name=leaving:M", "sys.exit(0)", r"it calls sys\.exit\(0\) when it is imported"),
    "the import of a model": ("model.name=leaving:M", "sys.exit()", r"it calls sys\.exit\(None\) when it is imported"),
    "building a model": ("model.name=leaving:M", "def M(classes):\n    sys.exit(0)", r"cannot be built: SystemExit"),
    "a model's first batch": (
        "model.name=leaving:M",
        "class M(nn.Linear):\n    def __init__(self, classes):\n        super().__init__(64, classes)\n"
        "    def forward(self, x):\n        sys.exit(0)",
        r"fails on a batch of shape \(3, 1, 8, 8\): SystemExit",
    ),
    "a method's own check": (
        "method.name=leaving:M",
        "class M(FedAvg):\n    @classmethod\n    def check(cls, *_):\n        sys.exit(0)",
        r"code that the config names called sys\.exit\(0\)",
    ),
    "a method's start": (
        "method.name=leaving:M",
        "class M(FedAvg):\n    def start(self):\n        sys.exit(0)",
        r"method\.name=leaving:M cannot start",
    ),
}


@pytest.mark.parametrize("where", EXITS)
def test_sys_exit_in_code_that_a_config_names_is_no_success_and_leaves_nothing(
    rayfl_typed: Callable[..., Typed], tmp_path: Path, where: str
) -> None:
    word, code, told = EXITS[where]
    imports = "import sys\nfrom torch import nn\nfrom rayfl.methods.fedavg import FedAvg\n"
    (tmp_path / "leaving.py").write_text(f"{imports}{code}\n")
    try:
        status, _, err = rayfl_typed("run", "federation=serial", "rounds=2", word)
    finally:
        sys.modules.pop("leaving", None)
    assert status in (1, 2), err
    assert re.search(f"error: .*{told}", err), err
    assert not (tmp_path / "runs").exists()


def test_partition_prints_every_client_and_draws_a_figure(rayfl_typed: Callable[..., Typed], tmp_path: Path) -> None:
    code, out, _ = rayfl_typed("partition", "partition.clients=8", "-o", "figure.png")
    assert code == 0
    assert "8 clients, 1797 of 1797 samples" in out
    assert "clients per true cluster: [2, 2, 2, 2]" in out
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_methods_lists_every_method_with_its_options(rayfl_typed: Callable[..., Typed]) -> None:
    _, out, _ = rayfl_typed("methods")
    for name in ("local", "fedavg", "fedprox", "fedac"):
        assert re.search(rf"^{name}  ", out, re.M)
    assert "method.tuning=silhouette" in out


def test_doctor_says_what_fits_and_warns_of_fractions_that_waste(
    rayfl_typed: Callable[..., Typed], ray_session: None
) -> None:
    code, out, _ = rayfl_typed("doctor")
    assert code == 0
    assert "4 CPUs, 2 GPUs: 4 fit" in out
    assert "nothing would go wrong" in out
    code, out, _ = rayfl_typed("doctor", "ray.gpus_per_actor=0.3", "ray.cpus_per_actor=0.5")
    assert code == 0
    assert ": 6 fit" in out
    assert "does not divide 1" in out
    assert "ray.actors_per_gpu=3" in out
    assert "memory: about 1.6 GB per GPU, 3 x (0.5 GB for CUDA and " in out
    assert rayfl_typed("doctor", "ray.actors=50")[0] == 2
