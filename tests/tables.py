"""Comparing runs: everything must be equal but the run's name, the clock, and notes of recoveries."""

import json

import pandas as pd

from rayfl.results import Run


def tables(run: Run) -> list[pd.DataFrame]:
    """Return the tables of a run without what may differ."""
    frames = [
        run.rounds.assign(extras=[_without_recoveries(e) for e in run.rounds["extras"]]),
        run.clients,
        run.clusters,
        run.newcomers,
    ]
    return [f.drop(columns=["run", *[c for c in f if c.startswith("seconds")]]) for f in frames]


def assert_same(one: Run, other: Run) -> None:
    """Compare to the last bit."""
    for a, b in zip(tables(one), tables(other), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def recoveries(run: Run) -> list[str]:
    """Return what was noted of recoveries."""
    return [note for extras in run.rounds["extras"] for note in json.loads(extras).get("recoveries", [])]


def _without_recoveries(extras: str) -> str:
    tree = json.loads(extras)
    tree.pop("recoveries", None)
    return json.dumps(tree, sort_keys=True)
