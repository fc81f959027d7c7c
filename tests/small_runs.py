"""Small serial runs of several methods, made once for the tests of views and figures, each when first asked for."""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.results import Run, load, load_begun
from rayfl.simulation.screen import Screen

_SMALL = ("federation=serial", "model.name=mlp", "rounds=3", "partition.clients=8", "partition.clusters=2")
_SMALL += ("local.steps=5", "output.checkpoint_every=0")


def small_run(folder: Path, method: str, *overrides: str) -> Run:
    """Run a method on the digits for a moment."""
    number = len(list(folder.iterdir()))
    keys = [*_SMALL, f"method.name={method}", f"output.dir={folder}", f"name={number}-{method}", *overrides]
    if any(key.startswith("partition.kind=") for key in overrides):
        keys.remove("partition.clusters=2")
    return simulate(load_config(None, keys), Screen(quiet=True))


def rewrite(run: Run, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Run:
    """Change a table of a run on disk, and read the run again."""
    file = next(Path(run.path, name).glob("*.parquet"))
    table = pq.read_table(file)
    changed = pa.Table.from_pandas(change(table.to_pandas()), schema=table.schema, preserve_index=False)
    pq.write_table(changed, file)
    return load(run.path)


def with_recoveries(folder: Path) -> Run:
    """A run that notes two recoveries in its second round."""
    notes = json.dumps({"recoveries": ["went on with 1 actor", "and again"]})
    run = small_run(folder, "fedavg", "rounds=2")
    return rewrite(run, "rounds", lambda rows: rows.assign(extras=["{}", notes]))


class SmallRuns:
    """Runs by what they are there for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.everything: list[Run] = []

    def _run(self, method: str, *overrides: str) -> Run:
        self.everything.append(small_run(self._folder, method, *overrides))
        return self.everything[-1]

    @cached_property
    def fedavg(self) -> list[Run]:
        """Two seeds."""
        return [self._run("fedavg", f"seed={seed}") for seed in (0, 1)]

    @cached_property
    def local(self) -> Run:
        """No clusters at all."""
        return self._run("local")

    @cached_property
    def ifca(self) -> list[Run]:
        """Two seeds, two clusters."""
        return [self._run("ifca", "method.clusters=2", f"seed={seed}") for seed in (0, 1)]

    @cached_property
    def ifca_of_five(self) -> Run:
        """The same with five clusters."""
        return self._run("ifca", "method.clusters=5")

    @cached_property
    def cam(self) -> Run:
        """The same with an add-on."""
        return self._run("ifca", "method.clusters=2", "method.addons=[cam]")

    @cached_property
    def fedac(self) -> Run:
        """With the similarity matrix in extras."""
        return self._run("fedac", "method.report_similarity=true", "method.tune_from=2", "output.sketches=64")

    @cached_property
    def granular(self) -> Run:
        """FedAC that tunes the number of clusters by the paper's rule."""
        return self._run("fedac", "method.tuning=granularity", "method.clusters=3", "method.merge_below=0.25")

    @cached_property
    def fixed(self) -> Run:
        """FedAC with a number of clusters that stays."""
        return self._run("fedac", "method.tuning=none", "method.clusters=3")

    @cached_property
    def fedtsdp(self) -> Run:
        """With the divergence matrix in extras, and a threshold that is passed."""
        return self._run("fedtsdp", "method.report_divergence=true", "method.hopkins=0.3", "method.shrink=0.7")

    @cached_property
    def sparse(self) -> Run:
        """Half of the clients per round, evaluated in every second round and after the last."""
        keys = ("rounds=5", "evaluate.every=2", "participation.count=4", "method.clusters=2")
        return self._run("ifca", *keys)

    @cached_property
    def iid_fedavg(self) -> Run:
        """No planted clusters."""
        return self._run("fedavg", "partition.kind=iid")

    @cached_property
    def iid_ifca(self) -> Run:
        """Clusters where none are planted."""
        return self._run("ifca", "partition.kind=iid", "method.clusters=2")

    @cached_property
    def unbegun(self) -> Run:
        """A run that was killed before it had a table."""
        folder = self._folder / "unbegun"
        folder.mkdir()
        (folder / "config.yaml").write_text(load_config(None, ["method.name=ifca", "method.clusters=2"]).to_yaml())
        return load_begun(folder)
