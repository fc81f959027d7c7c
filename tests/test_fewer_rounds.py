"""A stopped run that is given fewer rounds equals one that had them from the start."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import assert_same

import rayfl
from rayfl import cli
from rayfl.config import load_config
from rayfl.errors import InputError, RayflError
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.screen import Screen

FEDAC = [
    "federation=serial",
    "data.limit=240",
    "partition.clients=8",
    "model.name=mlp",
    "local.steps=2",
    "method.tune_from=2",
    "participation.fraction=0.5",
    "evaluate.every=3",
    "method.finetune=true",
    "output.models=all",
]


def run_in(folder: Path, name: str, *overrides: str, config: Any = FEDAC) -> Run:
    return simulate(
        load_config(None, [*config, f"output.dir={folder}", f"name={name}", *overrides]), Screen(quiet=True)
    )


def stopped_in(folder: Path, *overrides: str, config: Any = FEDAC, after: int = 4) -> Path:
    """A run of 8 rounds of which some are written; it ends as if the process had died in the next round."""

    class Impatient(Screen):
        def show_round(self, record: Any) -> None:
            if record.number == after + 1:
                raise RayflError("enough")

    words = [*config, "rounds=8", f"output.dir={folder}", "name=stopped", *overrides]
    with pytest.raises(RayflError, match="enough"):
        simulate(load_config(None, words), Impatient(quiet=True))
    return folder / "stopped"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds 1 to 4 (and 5, not shown) with checkpoints after 3 and 4."""
    return stopped_in(tmp_path_factory.mktemp("stopped"), "output.checkpoint_every=1")


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def models(run: Run) -> dict[str, bytes]:
    folder = Path(run.path) / "models"
    return {p.name: p.read_bytes() for p in folder.rglob("*.safetensors")}


@pytest.mark.parametrize("rounds", [5, 6, 7])
def test_a_stopped_run_ends_after_fewer_rounds_as_if_it_had_had_them_from_the_start(
    copy: Path, tmp_path: Path, rounds: int
) -> None:
    written = len(rayfl.load(copy).rounds)
    assert written == 5
    whole = run_in(tmp_path, "whole", f"rounds={rounds}")
    short = rayfl.resume(copy, rounds=rounds, quiet=True)
    assert_same(whole, short)
    assert short.finished and short.config.rounds == rounds and short.config == rayfl.load(copy).config
    assert "finetuned_accuracy" in short.extras.iloc[-1].dropna() and models(short) == models(whole)


def test_the_last_round_is_repeated_if_the_checkpoint_comes_after_it(tmp_path: Path) -> None:
    """After Ctrl-C the last checkpoint is of the last row; the run has to go back to the one before."""

    class Stopping(rayfl.Callback):
        def on_round_end(self, record: Any) -> None:
            if record.number == 5:
                import signal

                signal.raise_signal(signal.SIGINT)

    config = load_config(None, [*FEDAC, "rounds=8", f"output.dir={tmp_path}", "name=a", "output.checkpoint_every=2"])
    with pytest.raises(KeyboardInterrupt):
        simulate(config, Screen(quiet=True), [Stopping()])
    names = sorted(p.name for p in (tmp_path / "a" / "checkpoints").glob("round-*"))
    assert names == ["round-000004.json", "round-000005.json"]
    short = rayfl.resume(tmp_path / "a", rounds=5, quiet=True)
    assert_same(run_in(tmp_path, "whole", "rounds=5"), short)
    left = {p.name for p in (tmp_path / "a" / "checkpoints").iterdir()}
    assert "round-000004.json" in left and not any("000005" in name for name in left)


def test_without_checkpoints_it_begins_at_the_first_round(tmp_path: Path) -> None:
    path = stopped_in(tmp_path, "output.checkpoint_every=0")
    assert_same(run_in(tmp_path, "whole", "rounds=6"), rayfl.resume(path, rounds=6, quiet=True))


def test_the_command_does_it_too(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.resume(str(copy), ["rounds=6"])
    assert capsys.readouterr().out.splitlines()[-1] == str(copy)
    assert len(rayfl.load(copy).rounds) == 6


def test_a_shortened_run_can_be_given_more_rounds_again(copy: Path, tmp_path: Path) -> None:
    rayfl.resume(copy, rounds=6, quiet=True)
    assert_same(run_in(tmp_path, "whole", "rounds=8"), rayfl.resume(copy, rounds=8, quiet=True))


def test_a_cosine_stays_the_one_that_the_run_began_with(tmp_path: Path) -> None:
    path = stopped_in(tmp_path, "local.schedule=cosine", "output.checkpoint_every=1")
    whole = run_in(tmp_path, "whole", "rounds=6", "local.schedule=cosine", "local.schedule_options.over=8")
    assert_same(whole, rayfl.resume(path, rounds=6, quiet=True))


IFCA_CAM = [
    "federation=serial",
    "data.limit=240",
    "partition.clients=8",
    "model.name=mlp",
    "local.steps=1",
    "method.name=ifca",
    "method.addons=[cam]",
    "method.cam.warmup=6",
]


def refused(path: Path, match: str, **overrides: Any) -> None:
    before = contents(path)
    with pytest.raises(InputError, match=match):
        rayfl.resume(path, quiet=True, **overrides)
    assert contents(path) == before


def test_a_warm_up_that_would_not_end_is_refused(tmp_path: Path) -> None:
    path = stopped_in(tmp_path, config=IFCA_CAM, after=2)
    refused(path, r"method\.cam\.warmup=6 is not shorter than rounds=5", rounds=5)


def test_fewer_rounds_than_are_written_are_refused(copy: Path) -> None:
    refused(
        copy, r"rounds=4: 5 rounds of the run are there, and no results are removed; use rounds=5 or more", rounds=4
    )


def test_a_complete_run_cannot_be_given_fewer_rounds(tmp_path: Path) -> None:
    whole = run_in(tmp_path, "whole", "rounds=2")
    refused(Path(whole.path), "rounds=1: all 2 rounds of the run are there, it is complete", rounds=1)


def test_other_changes_are_still_refused(copy: Path) -> None:
    refused(copy, r"local\.lr=0\.7: the run began with 0\.05", rounds=6, local={"lr": 0.7})


def test_code_in_a_folder_is_not_imported_by_asking_for_fewer_rounds(
    own_code: Callable[[str, str], None], tmp_path: Path
) -> None:
    own_code("noisy", "from rayfl.client.task import Classification\n\nclass Mine(Classification):\n    pass\n")
    path = stopped_in(tmp_path, "task=noisy:Mine", "output.checkpoint_every=1")
    own_code("noisy", "raise RuntimeError('imported')")
    refused(path, "names code to be imported, task=noisy:Mine", rounds=6)


def test_a_run_that_a_callback_has_stopped_is_complete(tmp_path: Path) -> None:
    config = [word for word in FEDAC if "finetune" not in word]
    keys = ["rounds=8", "evaluate.every=1", "callbacks=[{name: early_stopping, metric: bytes_up, patience: 2}]"]
    run = run_in(tmp_path, "a", *keys, config=config)
    stopped = run.stopped_early
    assert stopped is not None
    refused(Path(run.path), f"stopped early after round {stopped.round} and is complete", rounds=stopped.round)
