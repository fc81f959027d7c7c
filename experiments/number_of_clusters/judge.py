"""Judge every rule for the number of clusters on the same evidence, offline, and write one table.

    python experiments/number_of_clusters/judge.py evidence -o judged.parquet [--rules utility agreement ...]

A row per setting, seed, number of trainings and rule: the levels of the factors, the planted and the found number of
clusters, the adjusted Rand index, the numbers that the evidence supports, and whether the setting is identifiable:
average linkage, told the planted number, reaches an index of 0.95 on the mean of both streams. `utility` looks at the
first stream alone, `stability` and `agreement` at both, the others at the mean of both. `decision` is what `utility`
decides in the course of training, as FedAC does: a verdict counts when the next one repeats it, `decided_at` says after
how many trainings. Where clients kept validation samples, `utility, validation` and `decision, validation` are the same
by the losses on these samples, and `utility, as asked` and `decision, as asked` by those on the samples that FedAC asks
about: for clients with few training samples those for validation, for the others those of training. Rows that the
table has are not computed again.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from evidence import VALIDATED
from settings import FACTORS, read_settings
from sklearn.metrics import adjusted_rand_score

from rayfl.clustering import UsefulClusters, average_linkage, cosine_distances, find_clusters, unit, useful_clusters
from rayfl.clustering.cuts import cut
from rayfl.clustering.rules import RULES
from rayfl.methods.judging import FEW_SAMPLES, Judging

SETTINGS = Path(__file__).with_name("settings.yaml")
IDENTIFIABLE = 0.95
UTILITY = "utility"
DECISION = "decision"
VALIDATION, AS_ASKED = ", validation", ", as asked"
#: The most trainings between two judgements, FedAC's default.
EVERY = 40
#: The other rules compare many clouds at each number of clusters, so they are judged on a sample of this many clients.
SAMPLE = 128
ALL = [*(rule + split for split in ("", VALIDATION, AS_ASKED) for rule in (DECISION, UTILITY)), *RULES]


def answers(arrays: Any, trainings: int, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what the judged clients say to a rule: losses in each group of the tree, and under the initial model."""

    def said(prefix: str) -> tuple[np.ndarray, np.ndarray]:
        losses, progress = (arrays[f"{prefix}{what} {trainings}"] for what in ("losses", "progress"))
        return losses.astype(np.float64), progress[:, 0]

    if not rule.endswith((VALIDATION, AS_ASKED)):
        return said("")
    validated = said(VALIDATED)
    if rule.endswith(VALIDATION):
        return validated
    judged, train = arrays[f"clients {trainings}"][arrays[f"judged {trainings}"]], said("")
    asked = (arrays["n_train"][judged] < FEW_SAMPLES) & ~np.isnan(validated[1])
    return np.where(asked[:, None], validated[0], train[0]), np.where(asked, validated[1], train[1])


def found_useful(arrays: Any, trainings: int, rule: str) -> UsefulClusters:
    """Return the clusters that help, of the clients that were judged."""
    points, judged = arrays[f"first {trainings}"], arrays[f"judged {trainings}"]
    losses, initial = answers(arrays, trainings, rule)
    return useful_clusters(arrays[f"tree {trainings}"], losses, points[judged], initial)


def utility(arrays: Any, trainings: int, rule: str = UTILITY) -> tuple[np.ndarray, int, list[int]]:
    """Return the clusters that help, of all clients: those that were not judged join the nearest."""
    points, judged = arrays[f"first {trainings}"], arrays[f"judged {trainings}"]
    found = found_useful(arrays, trainings, rule)
    directions = unit(points)
    middles = np.stack([directions[judged[found.assignment == k]].mean(axis=0) for k in range(found.clusters)])
    assignment = (directions @ middles.T).argmax(axis=1)
    assignment[judged] = found.assignment
    return assignment, found.clusters, list(found.supported)


def decision(arrays: Any, marks: list[int], rule: str = DECISION) -> tuple[np.ndarray, int, list[int], int]:
    """Return the clusters of all clients after the last judgement, and after how many trainings they were decided."""
    clients = len(arrays["truth"])
    state, used, decided_at = Judging.of(clients, marks[0]), np.zeros(clients, np.int64), 0
    supported: list[int] = []
    for trainings in marks:
        seen, judged = arrays[f"clients {trainings}"], arrays[f"judged {trainings}"]
        progress, first = arrays[f"progress {trainings}"], not state.decided
        found = found_useful(arrays, trainings, rule)
        if state.decide(seen[judged], found, progress, used, EVERY, trainings):
            used[seen] = utility(arrays, trainings, rule)[0]
            decided_at = trainings if first else decided_at
        supported = list(found.supported)
    return used[seen], len(np.unique(used[seen])), supported, decided_at


def can_judge(arrays: Any, rule: str) -> bool:
    """Return whether the evidence has what a rule is judged on."""
    needed = {VALIDATION: f"{VALIDATED}losses", AS_ASKED: "n_train"}
    kind = next((needed[end] for end in needed if rule.endswith(end)), "")
    return any(name.startswith(kind) for name in arrays.files)


def offline(arrays: Any, trainings: int, rule: str) -> tuple[np.ndarray, int, list[int]]:
    """Return what one of the rules on sketches finds."""
    if rule.startswith(UTILITY):
        return utility(arrays, trainings, rule)
    first, second = arrays[f"first {trainings}"], arrays[f"second {trainings}"]
    found = find_clusters(first, second, rule=rule, sample=SAMPLE)
    return found.assignment, found.clusters, list(found.supported)


def judge(path: Path, setting: dict[str, Any], rules: list[str], done: set[tuple]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file."""
    name, _, seed = path.stem.rpartition(" seed=")
    levels = {key: json.dumps(setting[key]) if key in ("sizes", "per_client") else setting[key] for key in FACTORS}
    with np.load(path) as arrays:
        marks = sorted(int(array.split()[1]) for array in arrays.files if array.startswith("first "))
        for trainings in marks:
            last = trainings == marks[-1]
            missing = [rule for rule in rules if (name, int(seed), trainings, rule) not in done]
            missing = [rule for rule in missing if last or not rule.startswith(DECISION)]
            missing = [rule for rule in missing if can_judge(arrays, rule)]
            if not missing:
                continue
            truth = arrays["truth"][arrays[f"clients {trainings}"]]
            planted = len(np.unique(truth))
            mean = (arrays[f"first {trainings}"] + arrays[f"second {trainings}"]) / 2
            told = adjusted_rand_score(truth, cut(average_linkage(cosine_distances(mean)), planted))
            for rule in missing:
                begin = time.perf_counter()
                decided_at = 0
                if rule.startswith(DECISION):
                    assignment, clusters, supported, decided_at = decision(arrays, marks, rule)
                else:
                    assignment, clusters, supported = offline(arrays, trainings, rule)
                yield {
                    "setting": name,
                    "seed": int(seed),
                    **levels,
                    "judged": len(truth),
                    "trainings": trainings,
                    "rule": rule,
                    "planted": planted,
                    "told": told,
                    "identifiable": bool(told >= IDENTIFIABLE),
                    "found": clusters,
                    "ari": adjusted_rand_score(truth, assignment),
                    "supported": json.dumps(supported),
                    "decided_at": decided_at,
                    "seconds": time.perf_counter() - begin,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--settings", type=Path, default=SETTINGS)
    parser.add_argument("-o", "--output", type=Path, default=Path("judged.parquet"))
    parser.add_argument("--rules", nargs="+", default=ALL, choices=ALL)
    given = parser.parse_args()
    files = sorted(path for path in given.evidence.glob("*.npz") if not path.name.endswith(".part.npz"))
    if not files:
        parser.error(f"{given.evidence} has no evidence: make it with evidence.py")
    settings = read_settings(given.settings)
    table = pd.read_parquet(given.output) if given.output.exists() else pd.DataFrame()
    keys = ["setting", "seed", "trainings", "rule"]
    done = set() if table.empty else set(table[keys].itertuples(index=False, name=None))
    for path in files:
        setting = settings.get(path.stem.rpartition(" seed=")[0])
        if setting is None:
            print(f"{path.name} is of no setting in {given.settings.name}: left out")
            continue
        rows = pd.DataFrame(judge(path, setting, given.rules, done))
        if len(rows):
            table = pd.concat([table, rows], ignore_index=True)
            table.to_parquet(given.output)
    print(f"{len(table)} rows in {given.output}; report.py makes the page")


if __name__ == "__main__":
    main()
