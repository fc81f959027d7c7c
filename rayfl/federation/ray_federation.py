"""The federation on Ray: a server actor that runs the method, and client actors that each host many clients."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from rayfl.config import Config
from rayfl.errors import InputError, RayflError
from rayfl.federation.interface import Facts, Federation
from rayfl.federation.ray_client import ClientActor, Seat, prepare_process
from rayfl.federation.ray_cluster import actors_that_fit, explain_unplaced
from rayfl.preparation import Prepared
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

    def __init__(self, search_path: list[str]) -> None:
        prepare_process(search_path)
        import scipy.optimize  # noqa: F401 - the first round needs it: better now, while the data load

        self._server: Server

    def open(self, config: Config, facts: Facts, truth: Any, actors: Sequence[Actor]) -> None:
        """Take in what is known of the federation, and start the method."""
        self._server = Server(config, RayFederation(facts, actors), truth)

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
def ray_server(config: Config, prepared: Callable[[], Prepared]) -> Iterator[RayServer]:
    """Start the actors on the Ray this process is connected to; release them in the end.

    Actors start while `prepared` still loads the data, which then go once into the object store, where all actors of
    a node read them without copying.
    """
    wanted = actors_that_fit(config.ray, config.partition.clients)
    client: Any = ray.remote(ClientActor).options(
        num_cpus=config.ray.cpus_per_actor, num_gpus=config.ray.gpu_share, scheduling_strategy="SPREAD"
    )
    remote_server: Any = ray.remote(ServerActor).options(num_cpus=0)
    actors = [client.remote(sys.path) for _ in range(wanted)]
    server = remote_server.remote(sys.path)
    try:
        ready = prepared()
        while len(actors) > ready.partition.clients:
            ray.kill(actors.pop())
        data, shares = ray.put(ready.dataset), ray.put(ready.partition)
        seats = _wait_for_seats(config, [actor.open.remote(ready.config, data, shares) for actor in actors])
        _get([server.open.remote(config, ready.facts, ready.partition.true_cluster, actors)])
        yield RayServer(server, seats)
    finally:
        for actor in [*actors, server]:
            ray.kill(actor)


def _wait_for_seats(config: Config, calls: Sequence[Any]) -> list[Seat]:
    ready, waiting = ray.wait(list(calls), num_returns=len(calls), timeout=config.ray.start_timeout)
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
