"""Run folders for tests of readers: with made-up numbers, and of a real run that pauses on request."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from faults import wait_until
from forks import Forked

from rayfl.config import load_config
from rayfl.results import RunWriter, Storage
from rayfl.simulation.folder import config_file

CLIENTS = 6


def begin_run(folder: Path, *overrides: str, begun: float | None = None) -> Storage:
    """Make a run's folder with its config, as a run does first."""
    config = load_config(None, ["method.name=fesem", "rounds=4", *overrides])
    storage = Storage(folder)
    assert storage.claim("config.yaml", config_file(config))
    (folder / ".lock").touch()
    if begun is not None:
        os.utime(folder / ".lock", (begun, begun))
    return storage


def add_rounds(storage: Storage, first: int, last: int, **more: Any) -> None:
    """Write rounds that differ from each other; the run continues after the earlier ones."""
    config = load_config(f"{storage.path}/config.yaml")
    resumed = {"resume_after": first - 1} if first > 1 else {}
    with RunWriter(storage, storage.name, config.method.name, config.seed, **resumed) as writer:
        for number in range(first, last + 1):
            writer.write_round(number, summary(number), clients(number), clusters(number), {"storage": 2.0, **more})


def summary(number: int) -> dict[str, Any]:
    measured = {"accuracy": number / 10, "macro_f1": number / 20, "loss": 1 / number, "accuracy_mean": number / 10}
    return measured | {"clusters": 2, "ari": 0.5, "bytes_up": 100 * number, "seconds_total": 0.25}


def clients(number: int) -> dict[str, Any]:
    return {
        "client": np.arange(CLIENTS),
        "cluster": np.arange(CLIENTS) % 2,
        "trained": np.ones(CLIENTS, bool),
        "n_train": np.full(CLIENTS, 10),
        "n_test": np.full(CLIENTS, 5),
        "accuracy": number / 10 + np.linspace(-0.05, 0.05, CLIENTS),
    }


def clusters(number: int) -> dict[str, Any]:
    return {"cluster": [0, 1], "size": [4, 2] if number % 2 else [3, 3]}


def write_run(folder: Path, *overrides: str, rounds: int = 4, begun: float | None = None) -> Path:
    """Write a run with this many rounds of the 4 that it is to have."""
    storage = begin_run(folder, *overrides, begun=begun)
    if rounds:
        add_rounds(storage, 1, rounds)
    return folder


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Return all files and folders, hidden ones too, with their sizes and times."""
    paths: Sequence[Path] = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in paths}


GATES = """
import pathlib, time
import rayfl

class Gates(rayfl.Callback):
    def on_round_end(self, record):
        while record.number % 4 == 0 and not pathlib.Path(f"open-{record.number}").exists():
            time.sleep(0.02)
"""


def typed(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Type `rayfl ...` in a folder."""
    command = [sys.executable, "-m", "rayfl.cli", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def gated_run(folder: Path) -> Iterator[Forked]:
    """A real run of 9 rounds in runs/mine, in its own process; it waits in rounds 4 and 8 until they are opened."""
    (folder / "gates.py").write_text(GATES)
    small = ["federation=serial", "partition.clients=8", "model.name=mlp", "local.steps=1", "rounds=9"]
    small += ["output.checkpoint_every=1"]  # before a checkpoint, all rows are written
    more = ["method.name=fesem", "method.clusters=2", "callbacks=[gates:Gates]", "name=mine"]
    process = Forked(["-m", "rayfl.cli", "run", *small, *more], folder)
    first = folder / "runs" / "mine" / "rounds"
    try:
        wait_until(lambda: first.exists() or process.poll() is not None, "the first round", 100)
        yield process
    finally:
        process.kill()
        process.wait(30)


def open_gate(folder: Path, number: int) -> None:
    """Let the run continue with this round."""
    (folder / f"open-{number}").touch()
