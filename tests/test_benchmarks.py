"""The benchmarks run, and what they print and write are ratios of sides that did the same work."""

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from forks import finished, python

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
#: For a program that starts others by `sys.executable`: they are forks too.
STARTING_FORKS = """
import runpy, sys
from pathlib import Path
sys.executable, sys.argv = sys.argv[1], sys.argv[2:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder: Path, name: str, *words: str, first: Sequence[str] = ()) -> tuple[str, pd.DataFrame]:
    """Run a benchmark in its short form; return what it printed and its rows."""
    program = [str(BENCHMARKS / f"{name}.py"), "--quick", *words]
    environment = {**os.environ, "RAYFL_BENCHMARK_RESULTS": str(folder)}
    done = finished([*first, *program], 280, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, pd.read_parquet(folder / f"{name}-quick.parquet")


def test_a_round_is_compared_with_a_bare_loop_that_does_the_same_work(tmp_path: Path) -> None:
    printed, rows = run(tmp_path, "round", "--only", "fedavg")
    assert "ratio" in printed and "CIFAR CNN" in printed
    rows = rows.set_index("figure")
    assert {"round", "training", "evaluation", "communication", "server", "CPU"} <= set(rows.index)
    parts = rows.loc[["training", "evaluation", "clients", "server", "communication"], "seconds"].sum()
    # Medians of few turns, with other tests beside them: they add up roughly.
    assert parts == pytest.approx(rows.loc["round", "seconds"], rel=0.6)
    assert 0.05 < rows.loc["round", "ratio"] < 20
    ours, theirs = rows.loc["round", "note"].removeprefix("accuracy ").split(" / ")
    assert float(ours) == pytest.approx(float(theirs), abs=0.05)  # the same clients, batches and steps


def test_a_sweep_is_compared_with_its_runs_one_by_one_and_killed(tmp_path: Path) -> None:
    _, rows = run(tmp_path, "sweep", first=["-c", STARTING_FORKS, python()])
    (row,) = rows.to_dict("records")
    assert row["ratio"] == pytest.approx(row["reference_seconds"] / row["seconds"])
    assert row["note"].endswith("of 2 runs, started again: equal tables")


def test_trainers_are_compared_and_the_rule_is_judged_by_the_best(tmp_path: Path) -> None:
    printed, rows = run(tmp_path, "trainers", "--only", "mlp 8 x 8")
    assert "auto / best" in printed
    assert set(rows["figure"]) == {"loop", "loop, channels last", "vectorised", "auto / best"}
    for _, batch in rows.groupby("variant"):
        by_figure = batch.set_index("figure")
        assert by_figure.loc["loop", "ratio"] == 1
        best = by_figure.drop("auto / best")["seconds"].min()
        assert by_figure.loc["auto / best", "reference_seconds"] == best


def test_a_partition_is_measured_and_transforms_against_none(tmp_path: Path) -> None:
    printed, rows = run(tmp_path, "partition")
    assert "later rounds" in printed
    by_figure = rows.set_index("figure")
    assert by_figure.loc["partition", "seconds"] < 5
    assert "drift" in by_figure.loc["partition", "note"]
    assert 0.3 < by_figure.loc["later rounds", "ratio"] < 1.5  # of few turns, with other tests beside them


def test_a_judgement_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    printed, rows = run(tmp_path, "judgement")
    assert "judgement on the number of clusters" in printed
    for (_, asked), parts in rows.groupby(["what", "variant"]):
        seconds = parts.set_index("figure")["seconds"]
        whole, training = seconds.pop("judgement"), seconds.pop("training of 100 clients")
        assert whole == pytest.approx(seconds.sum()) and len(seconds) == 3 and training > 0
        assert asked == "100 asked"
