"""What rules for the number of clusters are judged on: clients that trained alone, in two streams.

Every client trains two models from the same start on the same data with different batches, and nothing pulls them to
each other, so what is saved does not depend on any rule. After 5, 10, 20 and 40 trainings per client these are saved:
the sketches of both streams; and of the first stream the tree of cosine distances, with each client's loss under the
mean of the other members of every group in it, under the initial model and under its own. One file per setting and
seed; a file that is there is not made again.

    python experiments/number_of_clusters/evidence.py -o evidence [--seeds 0 1 2] [--only digits mnist ...]
    python experiments/number_of_clusters/evidence.py -o evidence_validation --validation 0.2 [--seeds 20]

With `--validation`, clients keep this share of their training samples out of training, and their losses on these
samples are saved too, next to those on training samples, with the number of training samples of each client. Both are
of the same models, so they can be compared.
"""

import argparse
import time
from math import ceil
from pathlib import Path

import numpy as np
from settings import read_settings, words

from rayfl.client.client import Known
from rayfl.client.handed import MODEL
from rayfl.client.worker import Worker
from rayfl.clustering import average_linkage, cosine_distances, fit_low_rank, project_all
from rayfl.config import load_config
from rayfl.federation import Federation
from rayfl.federation.serial import SerialFederation
from rayfl.methods.judging import MOST_JUDGED, held_out_losses, stratified
from rayfl.simulation.cohorts import draw_cohort
from rayfl.simulation.preparation import prepare
from rayfl.simulation.presence import cohort_size

SETTINGS = Path(__file__).with_name("settings.yaml")
MARKS = (5, 10, 20, 40)
COMPONENTS = 50
SECOND = "second stream"
#: Begins the names of arrays of losses on samples that nobody has trained on.
VALIDATED = "validated_"
#: This many models are held at once to project them.
HELD = 64


def sketches(fed: Federation, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sketches (n, D) of both streams, by a map that is fitted on the mean of both."""
    size, some = fed.layout.parameters, clients
    if len(clients) > MOST_JUDGED:
        some = np.sort(np.random.default_rng(0).choice(clients, MOST_JUDGED, False))
    mean = (fed.collect(some)[:, :size] + fed.collect(some, slot=SECOND)[:, :size]) / 2
    low_rank = fit_low_rank(mean, COMPONENTS)

    def of(slot: str) -> np.ndarray:
        parts = [clients[first : first + HELD] for first in range(0, len(clients), HELD)]
        models = (list(fed.collect(part, slot=slot)[:, :size]) for part in parts)
        return np.concatenate([project_all(low_rank, held, fed.initial[:size]) for held in models])

    return of(MODEL), of(SECOND)


def make(config_words: list[str], path: Path, trainings: tuple[int, ...] = MARKS) -> None:
    """Train the clients of one setting and seed, and save what they give."""
    prepared = prepare(load_config(None, ["federation=serial", "method.name=local", *config_words]))
    config, everybody = prepared.config, np.arange(len(prepared.facts.n_train))
    fed = SerialFederation(prepared.facts, Worker(config, prepared.dataset, prepared.partition))
    truth = prepared.partition.true_cluster
    arrays = {"truth": np.zeros(len(everybody), np.int64) if truth is None else np.asarray(truth)}
    if fed.n_validation.any():
        arrays["n_train"] = fed.n_train
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
                mark, seen = marks[number], np.flatnonzero(trained)
                first, second = sketches(fed, seen)
                judged = stratified(first, MOST_JUDGED, np.random.default_rng(0))
                tree = average_linkage(cosine_distances(first[judged]))
                found = {"clients": seen, "first": first, "second": second, "judged": judged, "tree": tree}
                splits: dict[str, Known] = {"": "train"}
                if fed.n_validation.any():
                    splits[VALIDATED] = "validation"
                for prefix, split in splits.items():
                    losses, progress = held_out_losses(fed, seen[judged], tree, split=split)
                    found |= {f"{prefix}losses": losses.astype(np.float32), f"{prefix}progress": progress}
                arrays |= {f"{name} {mark}": array for name, array in found.items()}
    finally:
        fed.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part.npz")
    np.savez_compressed(part, **arrays)
    part.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, default=SETTINGS)
    parser.add_argument("-o", "--output", type=Path, default=Path("evidence"))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--validation", type=float, default=0.0, help="share of the training samples that is kept out")
    parser.add_argument("--only", nargs="+", default=[""], help="only settings whose name begins with one of these")
    given = parser.parse_args()
    for seed in given.seeds:
        for name, setting in read_settings(given.settings).items():
            path = given.output / f"{name} seed={seed}.npz"
            if path.exists() or not name.startswith(tuple(given.only)):
                continue
            begin = time.perf_counter()
            make([*words(setting), f"seed={seed}", f"partition.validation={given.validation}"], path)
            print(f"{path.name}: {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
