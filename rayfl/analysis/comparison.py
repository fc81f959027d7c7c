"""Comparing runs: methods against each other over settings and seeds, paired if seed, data and start are the same.

The input is a list of runs; the output is tables of numbers, and notes. `comparison_tables` prints them.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.analysis.comparison_notes import began_alike, pairing_notes, run_notes, seed_notes, test_notes
from rayfl.analysis.measures import At, Measured, check_at, check_target, has_metric, measure, metric_names
from rayfl.analysis.metrics import lower_is_better
from rayfl.analysis.statistics import LEVEL, can_tell, paired_difference, sign_flip_test, summary
from rayfl.analysis.table_labels import TableLabels, natural_order, table_labels
from rayfl.errors import InputError, closest

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.results import Run

#: The seed of a run, and the seed of its partition.
Seeds = tuple[int, int]
Cell = dict[Seeds, Measured]
#: Numbers of single runs that a table shows as means over seeds.
FIGURES = ("worst10", "client_std", "ari", "misclustering", "clusters")
#: If clients change their planted clusters: the share of drifts after which a metric recovers, and the rounds it takes.
RECOVERY = ("recovered", "rounds_to_recovery", "ari_recovered", "ari_rounds_to_recovery")
COSTS = ("rounds_to_target", "mb_to_target", "seconds_to_target")


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. `summary` has a row per setting and method, `runs` a row per run that was used.

    `notes` say which runs were left out or could not be paired, and whether there are enough seeds for a test.
    """

    summary: "pd.DataFrame"
    runs: "pd.DataFrame"
    notes: list[str]
    metric: str
    at: At
    baseline: str | None
    target: float | None
    cells: "dict[tuple[str, str], Cell]"  # by setting and method: the runs that were used

    @property
    def settings(self) -> list[str]:
        """The settings in their order."""
        return list(dict.fromkeys(self.summary["setting"]))


def compare_runs(
    runs: "Sequence[Run]",
    *,
    metric: str = "accuracy",
    at: At = "last",
    baseline: str | None = None,
    target: float | None = None,
    partial: bool = False,
) -> Comparison:
    """Compare runs by a metric; see `rayfl.compare`."""
    import pandas as pd

    check_at(at)
    check_target(metric, target)
    if not runs:
        raise InputError("there are no runs to compare: give run folders, or folders that hold runs")
    _check_metric(runs, metric)
    notes: list[str] = []
    used = run_notes(runs, partial, notes)
    if not used:
        raise InputError(
            "none of the runs has finished: go on with them, or compare them as they are, with --partial (in Python:"
            " partial=True)"
        )
    labels = table_labels([run.config for run in used])
    cells = _cells(used, labels, metric, at, target, notes)
    notes += labels.notes
    if at == "last3" and any(len(m.rounds) < 3 for cell in cells.values() for m in cell.values()):
        notes.append("some runs have fewer than three evaluated rounds: the mean is over those they have")
    named = _baseline(baseline, cells)
    if baseline is None and named is None and any(_method_name(cell) == "fedavg" for cell in cells.values()):
        notes.append("several rows are of fedavg: name one of them as the baseline to see differences to it")
    alone = _only_row(cells, "local")
    order = _order(cells, named)
    rows = [_row(cells, setting, method, metric, named, alone, target) for setting, method in order]
    _mark_best(rows, cells, lower_is_better(metric))
    frame = pd.DataFrame(rows)
    notes += seed_notes(cells)
    notes += pairing_notes(cells, named)
    notes += test_notes(
        {str(name): int(rows["pairs_best"].max()) for name, rows in frame.groupby("setting") if len(rows) > 1}
    )
    frame.attrs["notes"] = notes
    return Comparison(frame, _run_table(cells), notes, metric, at, named, target, cells)


def pairs(one: Cell, other: Cell) -> list[tuple[Measured, Measured]]:
    """Return the pairs of runs that may be compared directly: same seeds, data, partition and initial model."""
    both = [(one[seeds], other[seeds]) for seeds in sorted(one.keys() & other.keys())]
    return [(a, b) for a, b in both if began_alike(a.run, b.run)]


def _check_metric(runs: "Sequence[Run]", metric: str) -> None:
    if any(has_metric(run, metric) for run in runs):
        return
    names = list(dict.fromkeys(name for run in runs for name in metric_names(run)))
    if names:
        raise InputError(f"metric={metric}: no run has it{closest(metric, names)}; there are {', '.join(names)}")


def _cells(
    runs: "list[Run]", labels: TableLabels, metric: str, at: At, target: float | None, notes: list[str]
) -> dict[tuple[str, str], Cell]:
    """Measure the runs, and return them by setting and method, then by seeds."""
    cells: dict[tuple[str, str], Cell] = defaultdict(dict)
    for run, row, column in zip(runs, labels.rows, labels.columns, strict=True):
        measured = measure(run, metric, at, target)
        if measured is None:
            notes.append(f"left out: {run.path} has no {metric}")
            continue
        seeds = (run.config.seed, run.config.partition_seed)
        known = cells[column, row].get(seeds)
        if known is None:
            cells[column, row][seeds] = measured
            continue
        shorter, longer = sorted([measured, known], key=lambda m: len(m.run.rounds))
        cells[column, row][seeds] = kept = known if len(shorter.run.rounds) == len(longer.run.rounds) else longer
        left = measured if kept is known else known
        notes.append(f"left out: {left.run.path} has the config and the seed of {kept.run.path}")
    found = {key: cell for key, cell in cells.items() if cell}
    if not found:
        raise InputError(f"metric={metric}: none of the runs that are left has it; see `rayfl list`")
    return found


def _baseline(asked: str | None, cells: dict[tuple[str, str], Cell]) -> str | None:
    """Return the row with which others are compared; by default the row of fedavg, if there is exactly one."""
    rows = sorted({row for _, row in cells}, key=natural_order)
    if asked is None:
        return _only_row(cells, "fedavg")
    if asked in rows:
        return asked
    of_name = sorted({row for (_, row), cell in cells.items() if _method_name(cell) == asked}, key=natural_order)
    if len(of_name) == 1:
        return of_name[0]
    if of_name:
        raise InputError(f"baseline={asked} names several rows: use one of {', '.join(map(repr, of_name))}")
    raise InputError(f"baseline={asked} is not among the methods{closest(asked, rows)}: use one of {', '.join(rows)}")


def _only_row(cells: dict[tuple[str, str], Cell], name: str) -> str | None:
    rows = {row for (_, row), cell in cells.items() if _method_name(cell) == name}
    return rows.pop() if len(rows) == 1 else None


def _method_name(cell: Cell) -> str:
    return next(iter(cell.values())).run.config.method.name


def _order(cells: dict[tuple[str, str], Cell], baseline: str | None) -> list[tuple[str, str]]:
    return sorted(cells, key=lambda key: (natural_order(key[0]), key[1] != baseline, natural_order(key[1])))


def _row(
    cells: dict[tuple[str, str], Cell],
    setting: str,
    method: str,
    metric: str,
    baseline: str | None,
    alone: str | None,
    target: float | None,
) -> dict[str, Any]:
    cell = cells[setting, method]
    found = summary([m.value for m in cell.values()])
    row: dict[str, Any] = {"setting": setting, "method": method, "n": found.n, "mean": found.mean, "std": found.std}
    row |= {"best": False, "not_worse": False, "pairs_best": 0, "p_best": math.nan}
    against = {} if baseline in (None, method) else cells.get((setting, str(baseline)), {})
    both = pairs(cell, against)
    difference = paired_difference([a.value for a, _ in both], [b.value for _, b in both])
    row |= {"pairs": difference.n, "difference": difference.mean, "low": difference.low, "high": difference.high}
    row["p"] = difference.p
    for name in (*FIGURES, *RECOVERY):
        row[name] = summary([m.figures.get(name, math.nan) for m in cell.values()]).mean
    row["worse_than_baseline"] = _worse_off(both, metric)
    row["worse_than_local"] = _worse_off(
        [] if alone in (None, method) else pairs(cell, cells.get((setting, str(alone)), {})), metric
    )
    if target is not None:
        row["reached"] = sum(not math.isnan(m.figures["rounds_to_target"]) for m in cell.values())
        row |= {name: summary([m.figures[name] for m in cell.values()]).mean for name in COSTS}
    return row


def _worse_off(both: list[tuple[Measured, Measured]], metric: str) -> float:
    """Return the fraction of clients that have a worse metric than with the other method: a mean over pairs of runs."""
    shares = []
    for ours, other in both:
        if ours.clients is None or other.clients is None:
            continue
        gain = (ours.clients - other.clients).dropna()
        worse = gain > 0 if lower_is_better(metric) else gain < 0
        shares.append(float(worse.mean()) if len(gain) else math.nan)
    return summary(np.array(shares)).mean


def _mark_best(rows: list[dict[str, Any]], cells: dict[tuple[str, str], Cell], less: bool) -> None:
    """Mark the best row of each setting, and rows that a test at 5 % does not find worse, if there are enough pairs."""
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        best = (min if less else max)(here, key=lambda row: row["mean"])
        best["best"] = True
        for row in here:
            if row is best:
                continue
            both = pairs(cells[setting, row["method"]], cells[setting, best["method"]])
            p = sign_flip_test([a.value - b.value for a, b in both])
            row |= {"pairs_best": len(both), "p_best": p, "not_worse": can_tell(len(both)) and p >= LEVEL}


def _run_table(cells: dict[tuple[str, str], Cell]) -> "pd.DataFrame":
    """Return a row per run that was used."""
    import pandas as pd

    rows = [
        {
            "setting": setting,
            "method": method,
            "seed": seeds[0],
            "partition_seed": seeds[1],
            "run": measured.run.path,
            "rounds": ",".join(map(str, measured.rounds)),
            "value": measured.value,
            **measured.figures,
        }
        for (setting, method), cell in cells.items()
        for seeds, measured in sorted(cell.items())
    ]
    return pd.DataFrame(rows)
