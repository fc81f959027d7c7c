"""The federation on Ray, inside the server actor. Its workers are the client actors, which each host many clients."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from rayfl.actors.client_actor import HEALTH, prepare_process
from rayfl.client.allocator import return_freed_memory
from rayfl.config import Config
from rayfl.errors import LostError, RayflError
from rayfl.federation.facts import Facts
from rayfl.federation.interface import Federation
from rayfl.simulation.server import Server

Actor = Any  # Ray's handles have no methods that a type checker could know


class RayFederation(Federation):
    """Calls its workers as actors. It lives inside the server actor, so models travel there and not to the driver."""

    def __init__(self, facts: Facts, epoch: int, actors: Sequence[Actor]) -> None:
        super().__init__(facts, workers=len(actors))
        self._epoch, self._actors = epoch, list(actors)

    def _share(self, arrays: Any) -> Any:
        try:
            return ray.put(arrays)
        except RayError as error:
            raise _lost(error) from None

    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        calls = [
            self._actors[w].call.remote(self._epoch, operation, shared, *arguments) for w, arguments in shares.items()
        ]
        return dict(zip(shares, get(calls), strict=True))

    def join(self, actors: Sequence[Actor]) -> None:
        """Add workers; clients move to them with the next training."""
        self._actors += actors
        self._places.workers = len(self._actors)


class ServerActor:
    """The server in its own process."""

    def __init__(self, search_path: list[str]) -> None:
        prepare_process(search_path)
        import scipy.optimize  # noqa: F401 - the first round needs it; import it now, while the data load

        self._server: Server
        self._fed: RayFederation

    def open(self, config: Config, facts: Facts, truth: Any, changes: Any, epoch: int, actors: Sequence[Actor]) -> None:
        """Receive the facts about the federation, and start the method."""
        self._fed = RayFederation(facts, epoch, actors)
        self._server = Server(config, self._fed, truth, changes)
        return_freed_memory()  # after a loss, this frees the memory of the previous server

    def rest(self) -> None:
        """Drop everything of the run that has ended; `open` makes this actor part of the next run."""
        del self._server, self._fed
        return_freed_memory()

    def join(self, actors: Sequence[Actor]) -> None:
        """Add client actors."""
        self._fed.join(actors)

    def call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Do one operation of the server."""
        return getattr(self._server, operation)(*arguments, **named)

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Answer at once, even while the actor computes."""


def get(calls: Sequence[Any]) -> list[Any]:
    """Wait for the calls; raise the original error instead of the one that Ray wraps around it."""
    try:
        return ray.get(list(calls))
    except RayTaskError as error:
        raise _unwrapped(error) from None
    except ActorDiedError as error:
        if error.actor_init_failed:  # a new actor would fail in the same way
            raise RayflError(f"an actor cannot start:\n{error}") from None
        raise _lost(error) from None
    except RayError as error:  # a dead or unreachable actor, or an object that was lost with its node
        raise _lost(error) from None


def _unwrapped(error: RayTaskError) -> Exception:
    """Return the error inside a call; if a lost actor made the call fail, its caller gets a LostError too."""
    cause = error.cause
    if isinstance(cause, RayflError):
        return cause
    if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
        return _lost(cause)
    return error


def _lost(error: RayError) -> LostError:
    return LostError(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
