"""The runs of a report together: their labels and styles, the metric, the baseline, which runs are shown in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from rayfl.analysis.comparison import Comparison, compare_runs, pairs
from rayfl.analysis.labels import Label, labels
from rayfl.analysis.measures import check_target
from rayfl.analysis.metrics import by_round, lower_is_better, require_metric
from rayfl.analysis.report.charts import Look, looks
from rayfl.analysis.table_labels import table_labels
from rayfl.errors import InputError, closest
from rayfl.uris import without_secrets

if TYPE_CHECKING:
    from rayfl.results import Run

#: Up to this number of runs, each is shown in detail; of more runs, the first seed of each label is.
ALL_IN_DETAIL = 12
#: Columns of `rounds` that are not metrics of a task.
_OTHER = {"loss", "clusters", "largest_share", "ari", "nmi", "misclustering", "clients_trained", "bytes_up"}
_OTHER |= {"bytes_down", "run", "method", "seed", "round", "extras", "accuracy_std", "accuracy_worst10"}
_OTHER |= {"seconds_train", "seconds_server", "seconds_eval", "seconds_total"}


@dataclass(frozen=True)
class Study:
    """Runs that are reported together. Everything that several sections must agree on is here."""

    runs: "Sequence[Run]"
    metric: str
    baseline: str | None  # a label, or the method part of labels
    target: float | None

    @cached_property
    def labels(self) -> list[Label]:
        """The label of each run."""
        return labels(self.runs)

    @cached_property
    def names(self) -> list[str]:
        """The label of each run as text, as views have it."""
        return [str(label) for label in self.labels]

    @cached_property
    def distinct(self) -> list[str]:
        """Each label once, in the order of the runs."""
        return list(dict.fromkeys(self.names))

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each label is drawn."""
        methods = {name: run.config.method.name for name, run in zip(self.names, self.runs, strict=True)}
        return looks(self.distinct, methods)

    @cached_property
    def lower(self) -> bool:
        """Whether a lower value of the metric is better."""
        return lower_is_better(self.metric)

    @cached_property
    def settings(self) -> list[str]:
        """The different settings (data, partition, ...) of the runs; one empty text if all are the same."""
        return list(dict.fromkeys(label.setting for label in self.labels))

    @cached_property
    def final(self) -> pd.DataFrame:
        """The metric at each run's last evaluated round: run, label, method, setting, seed, round, value."""
        rows = []
        for number, (run, label) in enumerate(zip(self.runs, self.labels, strict=True)):
            values = by_round(run, self.metric)
            if len(values):
                seed = run.config.seed
                rows.append(
                    (number, str(label), label.method, label.setting, seed, int(values.index[-1]), values.iloc[-1])
                )
        return pd.DataFrame(rows, columns=["run", "label", "method", "setting", "seed", "round", "value"])

    @cached_property
    def detailed(self) -> list[int]:
        """The numbers of the runs that are shown in detail."""
        if len(self.runs) <= ALL_IN_DETAIL:
            return list(range(len(self.runs)))
        first: dict[str, int] = {}
        for number, name in enumerate(self.names):
            best = first.setdefault(name, number)
            if self.runs[number].config.seed < self.runs[best].config.seed:
                first[name] = number
        return sorted(first.values())

    @cached_property
    def run_names(self) -> dict[int, str]:
        """The name of each run in lists: its label and seed, and its folder if these are not unique."""
        named = [f"{name}, seed {run.config.seed}" for name, run in zip(self.names, self.runs, strict=True)]
        folders = [folder(run) for run in self.runs]
        return {
            number: text if named.count(text) == 1 else f"{text} ({folders[number]})"
            for number, text in enumerate(named)
        }

    @cached_property
    def comparison(self) -> Comparison | None:
        """What `rayfl compare` finds in the runs, unfinished ones too; None if no run was evaluated."""
        if self.final.empty:
            return None
        begun = [self.runs[number] for number in self.final["run"]]
        rows = table_labels([run.config for run in begun]).rows
        names = zip(rows, self.final["label"], self.final["method"], strict=True)
        of_baseline = [row for row, label, method in names if self.baseline in (label, method)]
        baseline = of_baseline[0] if of_baseline else None
        return compare_runs(begun, metric=self.metric, baseline=baseline, partial=True)

    @cached_property
    def paired(self) -> set[tuple[str, int]]:
        """The label and the seed of each run that started with the same data and model as the baseline's run."""
        found: set[tuple[str, int]] = set()
        if self.comparison is None or self.comparison.baseline is None:
            return found
        name = {run.path: label for run, label in zip(self.runs, self.names, strict=True)}
        cells = self.comparison.cells
        for (setting, _), cell in cells.items():
            against = cells.get((setting, self.comparison.baseline), {})
            found |= {(name[ours.run.path], ours.run.config.seed) for ours, _ in pairs(cell, against)}
        return found

    def colour_of(self, setting: str, method: str) -> str:
        """Return the colour of a row of the comparison: that of its runs in all charts."""
        if self.comparison is None:
            raise ValueError("there is no comparison")
        path = next(iter(self.comparison.cells[setting, method].values())).run.path
        number = next(n for n, run in enumerate(self.runs) if run.path == path)
        return self.looks[self.names[number]].colour


def make_study(
    runs: "Sequence[Run]", metric: str | None = None, baseline: str | None = None, target: float | None = None
) -> Study:
    """Check the arguments, read every table once, and choose defaults for arguments that are not given."""
    if not runs:
        raise InputError("there is no run to report: give run folders, or folders that hold some")
    for run in runs:
        _read(run)
    if metric is not None:
        require_metric(runs, metric)
    study = Study(runs, metric or main_metric(runs), None, target)
    check_target(study.metric, target)
    methods = list(dict.fromkeys(label.method for label in study.labels))
    known = list(dict.fromkeys([*methods, *study.names]))
    if baseline is not None and baseline not in known:
        raise InputError(
            f"baseline={baseline!r}: no run is called that{closest(baseline, known)}; there are: {', '.join(known)}"
        )
    chosen = baseline
    if chosen is None and len(methods) > 1:
        chosen = "fedavg" if "fedavg" in methods else methods[0]
    return Study(runs, study.metric, chosen, target)


def main_metric(runs: "Sequence[Run]") -> str:
    """Return the metric by which runs are compared: accuracy, or else the first metric of their task."""
    for run in runs:
        names = [name for name in map(str, run.rounds) if name not in _OTHER and not name.endswith("_mean")]
        for name in names:
            if run.rounds[name].notna().any():
                return name
    return "accuracy"


def folder(run: "Run") -> str:
    """Return the name of a run's folder."""
    return without_secrets(run.path).rstrip("/").rpartition("/")[2]


def _read(run: "Run") -> None:
    """Read the tables that sections will need, so that a damaged folder is reported before any other work."""
    try:
        _ = run.config, run.rounds, run.clients, run.clusters, run.extras
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{run.path}: its tables cannot be read ({reason}): restore them, or leave it out") from None
