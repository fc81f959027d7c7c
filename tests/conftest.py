"""One Ray for the whole session, and actors that go from run to run: starting them takes seconds.

Ray's CPUs and GPUs are only counted.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forks
import pytest
import torch
from hypothesis import settings
from small_runs import SmallRuns

from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.federation.serial import SerialFederation
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import Server
from rayfl.sweeping import processes

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in workers; with more, tiny products spend their time waiting for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    # Ray's workers give way to everything else (nice 15): on a busy machine tests would wait for minutes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    counted = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 2**30}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **forks.LEAN, **counted})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    from rayfl.actors.idle import IDLE

    with IDLE.held():
        yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def own_actors(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test start actors of their own and end them, as anybody's do on a Ray that others use."""
    from rayfl.actors.idle import IDLE

    IDLE.release()
    monkeypatch.setattr(IDLE, "_holders", 0)


@pytest.fixture
def forked_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a sweep in this process starts are forks, which need not import torch."""
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=forks.python()))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    """Small runs of several methods, each made when first asked for."""
    return SmallRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def simulate_quietly(tmp_path: Path) -> Callable[..., Run]:
    """Run a config given as dotted overrides, into a folder of this test's own."""

    def run(*overrides: str, config: Any = None) -> Run:
        return simulate(load_config(config, [f"output.dir={tmp_path}", *overrides]), Screen(quiet=True))

    return run


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module as a user would have it, outside the package, on the path of this process."""

    def write(module: str, text: str) -> None:
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(text)
        sys.modules.pop(module, None)  # of another test
        monkeypatch.syspath_prepend(str(folder))

    return write


@pytest.fixture
def bn_module(own_code: Callable[[str, str], None]) -> str:
    """A network with batch norm and dropout, by import path."""
    own_code(
        "with_norm",
        """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 36, classes)
        )
""",
    )
    return "with_norm:Net"


@pytest.fixture
def failing_module(own_code: Callable[[str, str], None]) -> str:
    """A network that fails in training only."""
    own_code(
        "failing",
        """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        if self.training:
            raise RuntimeError("the cat ate it")
        return self.head(x.flatten(1))
""",
    )
    return "failing:Net"


@pytest.fixture
def serial_server() -> Iterator[Callable[..., Server]]:
    """A server on the in-process federation, to look into between rounds."""
    opened = []

    def make(*overrides: str) -> Server:
        prepared = prepare(load_config(None, ["federation=serial", *overrides]))
        fed = SerialFederation(prepared.facts, Worker(prepared.config, prepared.dataset, prepared.partition))
        opened.append(fed)
        return Server(prepared.config, fed, prepared.partition.true_cluster)

    yield make
    for fed in opened:
        fed.close()
