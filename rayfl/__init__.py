"""Clustered federated learning, simulated on Ray: `run` a config, `load` its results as DataFrames."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.version import __version__

if TYPE_CHECKING:
    from rayfl.config import Config
    from rayfl.results import Run

__all__ = ["__version__", "load", "run"]


def run(config: "str | Path | Mapping[str, Any] | Config | None" = None, **overrides: Any) -> "Run":
    """Run a simulation and return its results.

    `config` is a YAML file, a mapping, or nothing for the embedded default. Overrides are top-level keys with
    values or mappings (`rounds=5, method={"name": "fedavg"}`), or dotted keys (`**{"method.name": "fedavg"}`).
    `data` may also be Python objects: arrays `(x, y)`, a DataFrame, a torch Dataset, or `rayfl.data.sources.Data`;
    `partition` may be a `rayfl.data.PartitionKind`.
    """
    from rayfl.config import load_config
    from rayfl.data.given import given_objects
    from rayfl.launch import simulate

    with given_objects(overrides) as keys:
        return simulate(load_config(config, keys))


def load(path: "str | Path") -> "Run":
    """Read a run's folder, finished or still running."""
    from rayfl.results import load as load_run

    return load_run(path)
