"""Clustered federated learning, simulated on Ray: `run` a config, `load` its results as DataFrames."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.version import __version__

if TYPE_CHECKING:
    from rayfl.client.task import Classification, Regression, Task
    from rayfl.config import Config
    from rayfl.methods.method import Method
    from rayfl.results import Run
    from rayfl.simulation.callbacks import Callback

__all__ = [
    "Callback",
    "Classification",
    "Config",
    "Method",
    "Regression",
    "Task",
    "__version__",
    "load",
    "load_all",
    "report",
    "resume",
    "run",
]


def run(
    config: "str | Path | Mapping[str, Any] | Config | None" = None,
    *,
    callbacks: "Sequence[Callback | str | Mapping[str, Any]] | None" = None,
    quiet: bool = False,
    **overrides: Any,
) -> "Run":
    """Run a simulation and return its results.

    `config` is a YAML file, a mapping, or nothing for the embedded default. Overrides are top-level keys with
    values or mappings (`rounds=5, method={"name": "fedavg"}`), or dotted keys (`**{"method.name": "fedavg"}`).
    `callbacks` are objects, or names and mappings as in a config. With `quiet`, nothing is shown.
    `data` may also be Python objects: arrays `(x, y)`, a DataFrame, a torch Dataset, or `rayfl.data.sources.Data`;
    `partition` may be a `rayfl.data.PartitionKind`.
    """
    from rayfl.config import load_config
    from rayfl.data.given import given_objects
    from rayfl.launch import simulate
    from rayfl.simulation.screen import Screen

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        return simulate(load_config(config, {**keys, **named}), Screen(quiet), objects)


def resume(
    path: "str | Path",
    *,
    callbacks: "Sequence[Callback | str | Mapping[str, Any]] | None" = None,
    quiet: bool = False,
    **overrides: Any,
) -> "Run":
    """Go on with the run in a folder, to the same bits; `rounds=...` gives it more rounds. See `run`."""
    from rayfl.data.given import given_objects
    from rayfl.launch import resume as go_on
    from rayfl.simulation.screen import Screen

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        return go_on(path, {**keys, **named}, Screen(quiet), objects)


def load(path: "str | Path") -> "Run":
    """Read a run's folder, finished or still running."""
    from rayfl.results import load as load_run

    return load_run(path)


def load_all(path: "str | Path") -> "list[Run]":
    """Read every run below a folder, up to four folders deep, finished or not; a run's own folder is that run alone."""
    from rayfl.results import load_all as load_runs

    return load_runs(path)


def report(
    runs: "str | Path | Run | Sequence[str | Path | Run]",
    path: "str | Path" = "report.html",
    *,
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
) -> "Path":
    """Write one self-contained interactive page about runs, finished or still running; return its path.

    `runs` are `Run` objects, run folders, or folders that hold runs. `metric` is a column of `rounds`, by default the
    first that the task has; `baseline` is a label, by default `fedavg`; `target` is the metric whose cost is asked for.
    """
    from rayfl.analysis.report import check_report_file, write_report
    from rayfl.results import Run, load_all

    check_report_file(Path(path))
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    found = [run for item in given for run in ([item] if isinstance(item, Run) else load_all(item))]
    once = list({run.path: run for run in found}.values())  # a folder and its parent may both be given
    return write_report(once, path, metric=metric, baseline=baseline, target=target)


def _split(callbacks: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the callbacks that are objects, and the rest as an override of the config."""
    if callbacks is None:
        return [], {}
    given = [callbacks] if isinstance(callbacks, str | Mapping) else list(callbacks)
    named = [callback for callback in given if isinstance(callback, str | Mapping)]
    return [c for c in given if not isinstance(c, str | Mapping)], {"callbacks": named} if named or not given else {}


_LAZY = {
    "Callback": "rayfl.simulation.callbacks",
    "Classification": "rayfl.client.task",
    "Config": "rayfl.config",
    "Method": "rayfl.methods.method",
    "Regression": "rayfl.client.task",
    "Task": "rayfl.client.task",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for: torch takes seconds, and who only reads results needs none of it."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
