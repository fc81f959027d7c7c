"""Small real runs that the tests of the report share, and a way to read a page."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.results import Run, RunWriter, Storage
from rayfl.results.fingerprints import Fingerprints
from rayfl.simulation.folder import config_file
from rayfl.simulation.screen import Screen

_SMALL = ["federation=serial", "rounds=4", "partition.clients=8", "model.name=mlp", "local.steps=2"]


def small_run(folder: Path, *overrides: str) -> Run:
    return simulate(load_config(None, [*_SMALL, f"output.dir={folder}", *overrides]), Screen(quiet=True))


def study(folder: Path) -> list[Run]:
    """FedAC and FedAvg on two seeds each, and a FedTSDP: together they fill every section."""
    fedac = ["method.report_similarity=true", "method.tuning=granularity", "method.clusters=3"]
    runs = [small_run(folder, f"name=fedac{seed}", f"seed={seed}", *fedac) for seed in (0, 1)]
    runs += [small_run(folder, f"name=fedavg{seed}", f"seed={seed}", "method.name=fedavg") for seed in (0, 1)]
    runs += [small_run(folder, "name=fedtsdp0", "method.name=fedtsdp", "partition.public=0.1")]
    return runs


def figures(page: str) -> dict[str, Any]:
    """Return the figures that a page holds, by name."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of that name that is in the legend."""
    return next(t for t in figure["data"] if t["name"] == name and t.get("showlegend") is not False)


def written_run(
    folder: Path,
    name: str,
    clients: int,
    rounds: int,
    method: str = "fedac",
    extras: Any = None,
    level: float = 0.4,
    **config: Any,
) -> None:
    """Write a run's folder without training: tables of any size, with awkward names."""
    rng = np.random.default_rng(0)
    storage, seed = Storage(folder / name), int(config.get("seed", 0))
    overrides = {
        "method.name": method,
        "federation": "serial",
        "rounds": rounds,
        "partition.clients": clients,
        **config,
    }
    storage.write("config.yaml", config_file(load_config(None, overrides)))
    truth = rng.integers(0, 4, clients)
    start = Fingerprints("data", f"partition {seed}", "model").note()
    with RunWriter(storage, name, method, seed, flush_seconds=1000, notes=start) as writer:
        for number in range(1, rounds + 1):
            cluster = np.where(rng.random(clients) < 0.05, rng.integers(0, 4, clients), truth)
            accuracy = np.clip(rng.normal(level + 0.1 * number, 0.1, clients), 0, 1)
            columns = {
                "client": np.arange(clients),
                "cluster": cluster,
                "true_cluster": truth,
                "trained": np.ones(clients, bool),
                "n_train": np.full(clients, 20),
                "n_test": np.full(clients, 5),
                "accuracy": accuracy,
                "loss": 1 - accuracy,
            }
            present, sizes = np.unique(cluster, return_counts=True)
            summary = {
                "accuracy": accuracy.mean(),
                "loss": 1 - accuracy.mean(),
                "clusters": len(present),
                "ari": 0.9,
                "bytes_up": 1000 * clients,
                "bytes_down": 1000 * clients,
                "seconds_total": 1.0,
            }
            writer.write_round(number, summary, columns, {"cluster": present, "size": sizes}, extras)
