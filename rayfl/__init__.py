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
    Some may also be Python objects. `data`: arrays `(x, y)`, a DataFrame, a torch Dataset, or `rayfl.data.Data`;
    `partition`: a `rayfl.data.PartitionKind`; `model`: a torch module, its class, or a function that builds one;
    `method`: a class; `task`: a `Task` or its class. With options: `method={"name": MyMethod, "mu": 0.1}`.
    """
    from rayfl.config import load_config
    from rayfl.given import given_objects
    from rayfl.launch import simulate
    from rayfl.simulation.screen import Screen

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        return _with_objects(simulate(load_config(config, {**keys, **named}), Screen(quiet), objects))


def resume(
    path: "str | Path",
    *,
    callbacks: "Sequence[Callback | str | Mapping[str, Any]] | None" = None,
    quiet: bool = False,
    **overrides: Any,
) -> "Run":
    """Go on with the run in a folder, to the same bits; `rounds=...` gives it more rounds, or fewer. See `run`."""
    from rayfl.given import given_objects
    from rayfl.launch import resume as go_on
    from rayfl.simulation.screen import Screen
    from rayfl.simulation.shortening import shorten

    objects, named = _split(callbacks)
    with given_objects(overrides) as keys:
        shorten(path, {**keys, **named}, Screen(quiet))
        return _with_objects(go_on(path, {**keys, **named}, Screen(quiet), objects))


def load(path: "str | Path") -> "Run":
    """Read a run's folder, finished or still running."""
    from rayfl.results import load as load_run

    return load_run(path)


def _with_objects(run: "Run") -> "Run":
    """Let a run keep the Python objects that it was made with, for its saved models."""
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
    """Import a class when it is first asked for: torch takes seconds, and who only reads results needs none of it."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
