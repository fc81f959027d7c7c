"""Clustered federated learning, simulated on Ray: `run` a config, `load` its results as DataFrames."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.analysis.measures import At
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
    "compare",
    "load",
    "load_all",
    "report",
    "resume",
    "run",
    "sweep",
]


def run(
    config: "str | Path | Mapping[str, Any] | Config | None" = None,
    *,
    sets: "str | Sequence[str]" = (),
    callbacks: "Sequence[Callback | str | Mapping[str, Any]] | None" = None,
    quiet: bool = False,
    **overrides: Any,
) -> "Run":
    """Run a simulation and return its results.

    `config` is a YAML file, a mapping, or nothing for the embedded default. Overrides are top-level keys with
    values or mappings (`rounds=5, method={"name": "fedavg"}`), or dotted keys (`**{"method.name": "fedavg"}`).
    `sets` are names of sets in the config, as in `--set small`.
    `callbacks` are objects, or names and mappings as in a config. With `quiet`, nothing is shown.
    Some overrides may also be Python objects. `data`: arrays `(x, y)`, a DataFrame, a torch Dataset, or
    `rayfl.data.Data`; `partition`: a `rayfl.data.PartitionKind`; `model`: a torch module, its class, or a function that
    builds one; `method`: a class; `task`: a `Task` or its class. With options: `method={"name": MyMethod, "mu": 0.1}`.

    If the first run starts a local Ray, this Ray and its actors stay for later runs, which then start within two
    seconds. They end with this process, or with `ray.shutdown()`.
    """
    from rayfl.config import load_config
    from rayfl.given import given_objects
    from rayfl.launch import simulate
    from rayfl.simulation.screen import Screen

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        loaded = load_config(config, {**keys, **named}, sets)
        return _with_objects(simulate(loaded, Screen(quiet), objects, keep=True))


def resume(
    path: "str | Path",
    *,
    callbacks: "Sequence[Callback | str | Mapping[str, Any]] | None" = None,
    quiet: bool = False,
    **overrides: Any,
) -> "Run":
    """Continue the run in a folder, with bit-identical results; `rounds=...` sets a new number of rounds. See `run`."""
    from rayfl.given import given_objects
    from rayfl.launch import resume as go_on
    from rayfl.simulation.screen import Screen

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        return _with_objects(go_on(path, {**keys, **named}, Screen(quiet), objects, keep=True))


def load(path: "str | Path") -> "Run":
    """Read a run's folder, finished or still running."""
    from rayfl.results import load as load_run

    return load_run(path)


def sweep(
    config: "str | Path | Mapping[str, Any] | Config | None" = None,
    grid: "Mapping[str, Any] | None" = None,
    *,
    sets: "str | Sequence[str]" = (),
    only: "str | Sequence[str]" = (),
    jobs: int | None = None,
    retry: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> "list[Run]":
    """Carry out a grid of runs, several at a time, and return the complete ones.

    `config` is as in `run`, and may have a `sweep` section; `grid` has more axes: dotted keys with lists of values
    (`{"method.name": ["fedavg", "fedac"], "seed": range(5)}`). `sets` are names of sets in the config, `only` a name or
    a pattern, or several, of the runs to carry out. Runs that are already complete are not run again. If some runs
    fail, the others are still carried out; at the end a RayflError says why each of them failed.
    """
    from rayfl.errors import RayflError
    from rayfl.sweeping.sweep import sweep as carry_out

    axes = {**overrides, **(grid or {})}
    result = carry_out(config, axes, sets=sets, only=only, jobs=jobs, retry=retry, quiet=quiet)
    if result.failures:
        messages = [f"{name}: {message}" for name, message in result.failures.items()]
        raise RayflError("\n".join([f"failed runs in {result.path}:", *messages]))
    return result.runs


def load_all(path: "str | Path") -> "list[Run]":
    """Read every run in a folder, up to four folders deep, finished or not; for a run's own folder, just that run."""
    from rayfl.results import load_all as load_runs

    return load_runs(path)


def compare(
    runs: "str | Path | Run | Sequence[str | Path | Run]",
    *,
    metric: str = "accuracy",
    at: "At" = "last",
    baseline: str | None = None,
    target: float | None = None,
    partial: bool = False,
) -> "pd.DataFrame":
    """Compare methods over settings and seeds: a row per setting and method. `runs` are runs, or folders of them.

    A run is judged by `metric` in its last evaluated round (`at="last"`), by the mean of its last three (`last3`), or
    in the round with the best validation value (`best-validation`). Differences are to the method `baseline` (default:
    fedavg, if there is one), over runs with the same seed, data, partition and initial model. With `target`, the table
    also has the rounds, MB and seconds until the metric reaches it. `partial` includes unfinished runs.
    `frame.attrs["notes"]` says what was left out or could not be computed.
    """
    from rayfl.analysis.comparison import compare_runs
    from rayfl.comparing import gather

    found = gather(runs)
    return compare_runs(found, metric=metric, at=at, baseline=baseline, target=target, partial=partial).summary


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
    task's first metric; `baseline` is a label, by default `fedavg`; with `target`, the page shows the cost to reach
    this value of the metric.
    """
    from rayfl.analysis.report import check_report_file, write_report
    from rayfl.comparing import gather

    check_report_file(Path(path))
    return write_report(gather(runs), path, metric=metric, baseline=baseline, target=target)


def _with_objects(run: "Run") -> "Run":
    """Attach to a run the Python objects it was started with: its saved models need them."""
    from rayfl.object_names import object_of
    from rayfl.own_code import named_objects

    run.objects = {key: object_of(key, name) for key, name in named_objects(run.config).items()}
    return run


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
    """Import a class at its first use: importing torch takes seconds, and reading results does not need it."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
