"""Costs: bytes and seconds up to each round, the cost to reach a target, and recoveries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from rayfl.analysis.labels import labels
from rayfl.analysis.metrics import by_round, lower_is_better, require_metric

if TYPE_CHECKING:
    from rayfl.results import Run

_SO_FAR = ["bytes_up", "bytes_down", "bytes", "seconds"]


def cost(runs: "Sequence[Run]", metric: str = "accuracy") -> pd.DataFrame:
    """Return a metric and all that was spent up to its round: label, run, seed, round, value, bytes_up, bytes_down,
    bytes, seconds.

    Rounds without evaluation have no row, but their cost is included in the later rows.
    """
    require_metric(runs, metric)
    columns = ["label", "run", "seed", "round", "value", *_SO_FAR]
    parts = []
    for label, run in zip(labels(runs), runs, strict=True):
        rounds = run.rounds.set_index("round")
        spent = rounds[["bytes_up", "bytes_down"]].assign(
            bytes=rounds["bytes_up"] + rounds["bytes_down"], seconds=rounds["seconds_total"]
        )
        frame = by_round(run, metric).rename("value").to_frame().join(spent.fillna(0).cumsum()).reset_index()
        names = {"label": str(label), "run": run.rounds["run"].iloc[0] if len(rounds) else "", "seed": run.config.seed}
        parts.append(frame.assign(**names)[columns])
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def time_to_target(runs: "Sequence[Run]", target: float, metric: str = "accuracy") -> pd.DataFrame:
    """Return where each run first reaches a target: label, run, seed, reached, round, bytes, seconds.

    The last three are NaN for runs that never reach it. Only evaluated rounds count.
    """
    frame = cost(runs, metric)
    there = frame["value"] <= target if lower_is_better(metric) else frame["value"] >= target
    first = frame[there].groupby(["label", "run", "seed"], sort=False)[["round", "bytes", "seconds"]].first()
    every = frame.groupby(["label", "run", "seed"], sort=False).size().index
    found = first.reindex(every).astype(float).reset_index()
    found.insert(3, "reached", found["round"].notna())
    return found


def recoveries(run: "Run") -> pd.DataFrame:
    """Return the failures from which the run recovered, and in which round: round, note."""
    rows: list[tuple[int, str]] = []
    if len(run.rounds) and "recoveries" in run.extras:
        notes = run.extras["recoveries"].dropna()
        rows = [(int(str(number)), str(note)) for number, found in notes.items() for note in found]
    return pd.DataFrame(rows, columns=["round", "note"]).astype({"round": int})
