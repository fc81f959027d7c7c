"""Small serial runs of several methods, made once for the tests of views and figures, each when first asked for."""

from functools import cached_property
from pathlib import Path

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.results import Run
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
    def ifca(self) -> list[Run]:
        """Two seeds, two clusters."""
        return [self._run("ifca", "method.clusters=2", f"seed={seed}") for seed in (0, 1)]

    @cached_property
    def ifca_of_five(self) -> Run:
        """The same with five clusters."""
        return self._run("ifca", "method.clusters=5")

    @cached_property
    def fedac(self) -> Run:
        """With the similarity matrix in extras."""
        return self._run("fedac", "method.report_similarity=true", "method.tune_from=2")

    @cached_property
    def granular(self) -> Run:
        """FedAC that tunes the number of clusters by the paper's rule."""
        return self._run("fedac", "method.tuning=granularity", "method.clusters=3", "method.merge_below=0.25")

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
        from rayfl.results import load_begun

        folder = self._folder / "unbegun"
        folder.mkdir()
        (folder / "config.yaml").write_text(load_config(None, ["method.name=ifca"]).to_yaml())
        return load_begun(folder)
