"""Judge every rule for the number of clusters on the same evidence, offline, and write one table.

    python experiments/number_of_clusters/judge.py evidence -o judged.parquet

A row per file, number of trainings and rule: the planted and the found number of clusters, the adjusted Rand index, the
numbers that the evidence supports, and whether the setting is identifiable: average linkage, told the planted number,
reaches an index of 0.95 on the mean of both streams. Where nothing is planted there is one cluster to find.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

from rayfl.clustering import cosine_distances, find_clusters
from rayfl.clustering.cuts import average_linkage, cut
from rayfl.clustering.rules import RULES

IDENTIFIABLE = 0.95


def judge(path: Path) -> list[dict]:
    """Return the rows of one file."""
    setting, _, seed = path.stem.rpartition(" ")
    rows = []
    with np.load(path) as arrays:
        for trainings in sorted(int(name.split()[1]) for name in arrays.files if name.startswith("first ")):
            first, second = arrays[f"first {trainings}"], arrays[f"second {trainings}"]
            truth = arrays["truth"][arrays[f"clients {trainings}"]]
            planted = len(np.unique(truth))
            tree = average_linkage(cosine_distances((first + second) / 2))
            told = adjusted_rand_score(truth, cut(tree, planted))
            for rule in RULES:
                begin = time.perf_counter()
                found = find_clusters(first, second, rule=rule)
                rows.append(
                    {
                        "setting": setting,
                        "seed": int(seed),
                        "clients": len(truth),
                        "trainings": trainings,
                        "rule": rule,
                        "planted": planted,
                        "identifiable": bool(told >= IDENTIFIABLE),
                        "clusters": found.clusters,
                        "ari": adjusted_rand_score(truth, found.assignment),
                        "supported": list(found.supported),
                        "seconds": time.perf_counter() - begin,
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("judged.parquet"))
    given = parser.parse_args()
    files = sorted(path for path in given.evidence.glob("*.npz") if not path.name.endswith(".part.npz"))
    if not files:
        parser.error(f"{given.evidence} has no evidence: make it with evidence.py")
    table = pd.DataFrame([row for path in files for row in judge(path)])
    table.to_parquet(given.output)
    table["right"] = table["ari"] >= IDENTIFIABLE
    known = table[table["identifiable"]]
    print(known.pivot_table("right", ["setting", "trainings"], "rule").round(2).to_string())
    print(known.groupby("rule")["right"].agg(["mean", "sum", "count"]).round(3).to_string())


if __name__ == "__main__":
    main()
