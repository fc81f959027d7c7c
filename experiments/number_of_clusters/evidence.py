"""What rules for the number of clusters are judged on: sketches of clients that trained alone, in two streams.

Every client trains two models from the same start on the same data with different batches, and nothing pulls them to
each other, so what is saved does not depend on any rule. After 5, 10, 20 and 40 trainings per client the sketches of
both streams are saved, one file per setting and seed; a file that is there is not made again.

    python experiments/number_of_clusters/evidence.py settings.yaml -o evidence [--seeds 0 1 2] [--only NAME ...]
"""

import argparse
import time
from math import ceil
from pathlib import Path

import numpy as np
import yaml

from rayfl.client.handed import MODEL
from rayfl.client.worker import Worker
from rayfl.clustering import fit_low_rank, project_all
from rayfl.config import load_config
from rayfl.federation import Federation
from rayfl.federation.serial import SerialFederation
from rayfl.simulation.cohorts import draw_cohort
from rayfl.simulation.preparation import prepare
from rayfl.simulation.presence import cohort_size

MARKS = (5, 10, 20, 40)
COMPONENTS = 50
SECOND = "second stream"
#: The map is fitted on at most so many clients; so many models are held at once to project them.
FITTED, HELD = 256, 64


def sketches(fed: Federation, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sketches (n, D) of both streams, by a map that is fitted on the mean of both."""
    size = fed.layout.parameters
    some = clients if len(clients) <= FITTED else np.sort(np.random.default_rng(0).choice(clients, FITTED, False))
    mean = (fed.collect(some)[:, :size] + fed.collect(some, slot=SECOND)[:, :size]) / 2
    low_rank = fit_low_rank(mean, COMPONENTS)

    def of(slot: str) -> np.ndarray:
        parts = [clients[first : first + HELD] for first in range(0, len(clients), HELD)]
        models = (list(fed.collect(part, slot=slot)[:, :size]) for part in parts)
        return np.concatenate([project_all(low_rank, held, fed.initial[:size]) for held in models])

    return of(MODEL), of(SECOND)


def make(words: list[str], path: Path, trainings: tuple[int, ...] = MARKS) -> None:
    """Train the clients of one setting and seed, and save their sketches."""
    prepared = prepare(load_config(None, ["federation=serial", "method.name=local", *words]))
    config, everybody = prepared.config, np.arange(len(prepared.facts.n_train))
    fed = SerialFederation(prepared.facts, Worker(config, prepared.dataset, prepared.partition))
    truth = prepared.partition.true_cluster
    arrays = {"truth": np.zeros(len(everybody), np.int64) if truth is None else np.asarray(truth)}
    trained = np.zeros(len(everybody), bool)
    per_round = cohort_size(config, fed.presence, 1)
    marks = {ceil(mark * len(everybody) / per_round): mark for mark in trainings}
    try:
        for number in range(1, max(marks) + 1):
            fed.begin_round(number)
            cohort = draw_cohort(config, fed.presence, fed.n_train, number)
            fed.train(cohort, keep=True)
            fed.train(cohort, keep=True, slot=SECOND, stream=1)
            trained[cohort] = True
            if number in marks:
                seen = np.flatnonzero(trained)
                arrays[f"clients {marks[number]}"] = seen
                arrays[f"first {marks[number]}"], arrays[f"second {marks[number]}"] = sketches(fed, seen)
    finally:
        fed.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part.npz")
    np.savez_compressed(part, **arrays)
    part.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("evidence"))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--only", nargs="+")
    given = parser.parse_args()
    settings = yaml.safe_load(given.settings.read_text())
    for seed in given.seeds:
        for name, words in settings["settings"].items():
            path = given.output / f"{name} {seed}.npz"
            if path.exists() or (given.only and name not in given.only):
                continue
            begin = time.perf_counter()
            make([*settings["base"], *words, f"seed={seed}"], path)
            print(f"{path.name}: {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
