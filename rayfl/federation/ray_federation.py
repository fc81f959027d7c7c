"""The federation on Ray: a server actor that runs the method, and client actors that each host many clients."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from rayfl.config import Config
from rayfl.data import Dataset, Partition
from rayfl.errors import InputError, RayflError
from rayfl.federation.interface import Facts, Federation
from rayfl.federation.ray_client import ClientActor, Seat, prepare_process
from rayfl.federation.ray_cluster import actors_that_fit, explain_unplaced
from rayfl.server import RoundRecord, Server

Actor = Any  # Ray's handles have no methods that a type checker could know


class RayFederation(Federation):
    """Calls its workers as actors; lives inside the server actor, so that models go there and not to the driver."""

    def __init__(self, facts: Facts, actors: Sequence[Actor]) -> None:
        super().__init__(facts, workers=len(actors))
        self._actors = actors

    def _share(self, arrays: Any) -> Any:
        return ray.put(arrays)

    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        calls = [self._actors[w].call.remote(operation, shared, *arguments) for w, arguments in shares.items()]
        return dict(zip(shares, _get(calls), strict=True))


class ServerActor:
    """The server in a process of its own."""

    def __init__(
        self, config: Config, search_path: list[str], facts: Facts, truth: Any, actors: Sequence[Actor]
    ) -> None:
        prepare_process(search_path)
        self._server = Server(config, RayFederation(facts, actors), truth)

    def ready(self) -> None:
        """Answer once the method has started."""

    def run_round(self, number: int) -> RoundRecord:
        """Run one round; see Server."""
        return self._server.run_round(number)


class RayServer:
    """The driver's handle of the server actor and its client actors; looks like a Server."""

    def __init__(self, server: Actor, seats: Sequence[Seat]) -> None:
        self._server, self.seats = server, seats

    def run_round(self, number: int) -> RoundRecord:
        """Run one round on the server actor."""
        return _get([self._server.run_round.remote(number)])[0]

    def describe(self) -> str:
        """Say in a line where the clients live."""
        nodes = len({seat.node for seat in self.seats})
        devices = sorted({seat.device.partition(":")[0] for seat in self.seats})
        return f"{len(self.seats)} client actors on {nodes} node{'s' * (nodes > 1)} ({', '.join(devices)})"


@contextmanager
def ray_server(config: Config, dataset: Dataset, partition: Partition, facts: Facts) -> Iterator[RayServer]:
    """Start the actors on the Ray this process is connected to; release them in the end.

    The data set goes once into the object store, where all actors of a node read it without copying.
    """
    wanted = actors_that_fit(config.ray, partition.clients)
    data, shares = ray.put(dataset), ray.put(partition)
    client: Any = ray.remote(ClientActor).options(
        num_cpus=config.ray.cpus_per_actor, num_gpus=config.ray.gpu_share, scheduling_strategy="SPREAD"
    )
    remote_server: Any = ray.remote(ServerActor).options(num_cpus=0)
    actors = [client.remote(config, sys.path, data, shares) for _ in range(wanted)]
    server = remote_server.remote(config, sys.path, facts, partition.true_cluster, actors)
    try:
        seats = _wait_for_seats(config, actors)
        _get([server.ready.remote()])
        yield RayServer(server, seats)
    finally:
        for actor in [*actors, server]:
            ray.kill(actor)


def _wait_for_seats(config: Config, actors: Sequence[Actor]) -> list[Seat]:
    calls = [actor.seat.remote() for actor in actors]
    ready, waiting = ray.wait(calls, num_returns=len(calls), timeout=config.ray.start_timeout)
    if waiting:
        _get(ready)  # an actor that failed to start says why
        raise InputError(explain_unplaced(config.ray, len(waiting), len(calls)))
    return _get(calls)


def _get(calls: Sequence[Any]) -> list[Any]:
    """Wait for the calls, and turn Ray's wrapping of errors into the errors themselves."""
    try:
        return ray.get(list(calls))
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, RayflError) else error from None
    except RayActorError as error:
        raise RayflError(f"an actor of this run died: {error}") from None
