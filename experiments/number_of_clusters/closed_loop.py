"""Run FedAC with its default rule on some of the settings, for 100 trainings per client, beside one and K* clusters.

    python experiments/number_of_clusters/closed_loop.py [--seeds 10 11] [--only digits ...] [--rules utility bic]
    python experiments/number_of_clusters/closed_loop.py --rules "utility, validation" --judged FILE [--seeds 20]

A row per setting, seed and rule: the number of clusters after 20 trainings and at the end, the adjusted Rand index and
the accuracy at the end, those of the same run with one cluster and with the planted number given, and the index of the
same rule offline. `bic` is the second best rule, see by_points.py. With `utility, validation`, clients keep a fifth of
their training samples for validation, and those with few training samples are asked about it. Rows that the table has
are not computed again.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
from settings import read_settings, words

import rayfl
from rayfl.config import load_config

HERE = Path(__file__).parent
TRAININGS, EARLY = 100, 20
#: Each rule: the method that follows it, what it is called in the table of offline judgements, and the share of
#: training samples that clients keep for validation.
RULES = {
    "utility": ("fedac", "decision", 0.0),
    "utility, validation": ("fedac", "decision, as asked", 0.2),
    "bic": ("by_points:Bic", "bic", 0.0),
}


def run(setting: dict[str, Any], seed: int, *more: str, method: str = "fedac") -> pd.DataFrame:
    """Return the rounds of one run."""
    rounds = ceil(TRAININGS / setting["participation"])
    with tempfile.TemporaryDirectory() as folder:
        given = ["federation=serial", f"rounds={rounds}", f"evaluate.every={rounds}", f"seed={seed}"]
        given += [*words(setting), f"output.dir={folder}", "output.checkpoint_every=100000", "output.models=none"]
        return rayfl.run(load_config(None, [f"method.name={method}", *given, *more]), quiet=True).rounds


def compare(
    name: str, setting: dict[str, Any], seed: int, rules: Sequence[str], judged: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a setting and seed."""
    known = judged[(judged["setting"] == name) & (judged["seed"] == seed)]
    known = known[known["trainings"] == known["trainings"].max()].set_index("rule")
    planted = setting["clusters"]
    fixed: dict[tuple[int, float], pd.Series] = {}  # with a given number of clusters, by the validation share
    for rule in rules:
        method, offline, share = RULES[rule]
        kept = f"partition.validation={share}"
        for clusters in {1, planted}:
            if (clusters, share) not in fixed:
                given = run(setting, seed, "method.tuning=none", f"method.clusters={clusters}", kept)
                fixed[clusters, share] = given.iloc[-1]
        one, told = fixed[1, share], fixed[planted, share]
        found = run(setting, seed, kept, method=method)
        early = found.loc[found["round"] == ceil(EARLY / setting["participation"]), "clusters"].iloc[0]
        last = found.iloc[-1]
        yield {
            "setting": name,
            "seed": seed,
            "rule": rule,
            "data": setting["data"],
            "planted": planted,
            "at_20": int(early),
            "at_end": int(last["clusters"]),
            "ari": float(last["clusters"] == 1) if planted == 1 else float(last["ari"]),
            "accuracy": float(last["accuracy"]),
            "one": float(one["accuracy"]),
            "told": float(told["accuracy"]),
            "offline": float(known["ari"][offline]) if offline in known.index else float("nan"),
            "identifiable": bool(known["identifiable"].iloc[0]) or planted == 1,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, default=HERE / "settings.yaml")
    parser.add_argument("--judged", type=Path, default=HERE / "judged.parquet")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "closed_loop.parquet")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(2))
    parser.add_argument("--only", nargs="+", default=[""], help="only settings whose name begins with one of these")
    parser.add_argument("--rules", nargs="+", default=["utility"], choices=list(RULES))
    given = parser.parse_args()
    judged = pd.read_parquet(given.judged)
    have = set(zip(judged["setting"], judged["seed"], strict=True))
    table = pd.read_parquet(given.output) if given.output.exists() else pd.DataFrame()
    done = set() if table.empty else set(zip(table["setting"], table["seed"], table["rule"], strict=True))
    for seed in given.seeds:
        for name, setting in read_settings(given.settings).items():
            rules = [rule for rule in given.rules if (name, seed, rule) not in done]
            if not rules or (name, seed) not in have or not name.startswith(tuple(given.only)):
                continue
            for row in compare(name, setting, seed, rules, judged):
                table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
                table.to_parquet(given.output)
                print(row, flush=True)


if __name__ == "__main__":
    main()
