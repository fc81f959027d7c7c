"""How many copies of the clients' models a server holds at once, where a method collects them."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rayfl.methods.cgpfl import CGPFL
from rayfl.methods.flhc import FLHC
from rayfl.simulation.server import Server

Make = Callable[..., Server]

# 12 models of 300,000 numbers: 14 MB a copy, beside which a block of columns as float64 is small.
LARGE = ["data.limit=480", "partition.clients=12", "local.steps=1", "model.name=mlp", "model.options.hidden=4000"]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Server], Callable[[], float]]]:
    """Count memory from the next `collect` on; the answer is the most there was at once, in what was collected."""

    def watch(server: Server) -> Callable[[], float]:
        collect, collected = server.fed.collect, []

        def counted(*arguments: Any, **named: Any) -> np.ndarray:
            tracemalloc.start()
            found = collect(*arguments, **named)
            collected.append(found.nbytes)
            return found

        monkeypatch.setattr(server.fed, "collect", counted)
        return lambda: tracemalloc.get_traced_memory()[1] / collected[0]

    yield watch
    tracemalloc.stop()


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_flhc_holds_the_clients_models_twice_at_most(
    serial_server: Make, copies: Callable[[Server], Callable[[], float]], distance: str
) -> None:
    server = serial_server(*LARGE, "method.name=flhc", f"method.distance={distance}", "method.clusters=2")
    most, method = copies(server), server.method
    assert isinstance(method, FLHC)
    server.fed.begin_round(1)
    method._cluster()
    assert most() < 2.2
    assert len(set(method.assignment())) == 2


def test_cgpfl_holds_the_clients_models_twice_at_most(
    serial_server: Make, copies: Callable[[Server], Callable[[], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serial_server(*LARGE, "method.name=cgpfl", "method.clusters=2")
    most, method, found, mean = copies(server), server.method, [], server.fed.mean_of_kept
    assert isinstance(method, CGPFL)

    def after_clustering(*arguments: Any) -> np.ndarray:
        found.append(most())
        return mean(*arguments)  # the sums that come now are the clients' workers'

    monkeypatch.setattr(server.fed, "mean_of_kept", after_clustering)
    server.fed.begin_round(1)
    method.round(np.arange(12))
    assert found[0] < 2.2
