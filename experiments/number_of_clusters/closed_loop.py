"""Run FedAC with its default rule on some of the settings, for 100 trainings per client, beside one and K* clusters.

    python experiments/number_of_clusters/closed_loop.py --judged judged.parquet -o closed_loop.parquet [--seeds 0 1]

A row per setting and seed: the number of clusters after 20 trainings and at the end, the adjusted Rand index and the
accuracy at the end, those of the same run with one cluster and with the planted number given, and the index of the
offline decision. Rows that the table has are not computed again.
"""

import argparse
import tempfile
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
from settings import read_settings, words

import rayfl
from rayfl.config import load_config

HERE = Path(__file__).parent
TRAININGS, EARLY = 100, 20


def run(setting: dict[str, Any], seed: int, *more: str) -> pd.DataFrame:
    """Return the rounds of one run."""
    rounds = ceil(TRAININGS / setting["participation"])
    with tempfile.TemporaryDirectory() as folder:
        given = ["federation=serial", f"rounds={rounds}", f"evaluate.every={rounds}", f"seed={seed}"]
        given += [*words(setting), f"output.dir={folder}", "output.checkpoint_every=100000", "output.models=none"]
        return rayfl.run(load_config(None, ["method.name=fedac", *given, *more]), quiet=True).rounds


def compare(name: str, setting: dict[str, Any], seed: int, offline: pd.DataFrame) -> dict[str, Any]:
    """Return the row of a setting and seed."""
    found = run(setting, seed)
    early = found.loc[found["round"] == ceil(EARLY / setting["participation"]), "clusters"].iloc[0]
    last = found.iloc[-1]
    one = run(setting, seed, "method.tuning=none", "method.clusters=1").iloc[-1]
    planted = setting["clusters"]
    told = one if planted == 1 else run(setting, seed, "method.tuning=none", f"method.clusters={planted}").iloc[-1]
    known = offline[(offline["setting"] == name) & (offline["seed"] == seed)]
    return {
        "setting": name,
        "seed": seed,
        "data": setting["data"],
        "planted": planted,
        "at_20": int(early),
        "at_end": int(last["clusters"]),
        "ari": float(last["clusters"] == 1) if planted == 1 else float(last["ari"]),
        "accuracy": float(last["accuracy"]),
        "one": float(one["accuracy"]),
        "told": float(told["accuracy"]),
        "offline": float(known["ari"].iloc[0]),
        "identifiable": bool(known["identifiable"].iloc[0]) or planted == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, default=HERE / "settings.yaml")
    parser.add_argument("--judged", type=Path, default=HERE / "judged.parquet")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "closed_loop.parquet")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(2))
    parser.add_argument("--only", nargs="+", default=[""], help="only settings whose name begins with one of these")
    given = parser.parse_args()
    judged = pd.read_parquet(given.judged)
    offline = judged[judged["rule"] == "decision"]
    have = set(zip(offline["setting"], offline["seed"], strict=True))
    table = pd.read_parquet(given.output) if given.output.exists() else pd.DataFrame()
    done = set() if table.empty else set(zip(table["setting"], table["seed"], strict=True))
    for seed in given.seeds:
        for name, setting in read_settings(given.settings).items():
            if (name, seed) in done or (name, seed) not in have or not name.startswith(tuple(given.only)):
                continue
            row = compare(name, setting, seed, offline)
            table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
            table.to_parquet(given.output)
            print(row, flush=True)


if __name__ == "__main__":
    main()
