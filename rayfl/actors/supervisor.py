"""The driver's side of a run on Ray: starts the actors, watches over them, and replaces what is lost."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.exceptions import RayError
from ray.experimental import get_local_object_locations

from rayfl.actors.client_actor import HEALTH, ClientActor, Seat
from rayfl.actors.cluster import (
    actors_that_fit,
    client_strategy,
    explain_unplaced,
    free_places,
    head_answers,
    placement_group,
    server_strategy,
)
from rayfl.actors.idle import IDLE, IdleActor, IdleActors, end_actor
from rayfl.actors.server_actor import Actor, ServerActor, get
from rayfl.config import Config
from rayfl.errors import InputError, LostError, NobodyLeftError
from rayfl.own_code import named_code, named_objects, search_path
from rayfl.simulation.preparation import Prepared, after_trying
from rayfl.simulation.server import RoundRecord, Server

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds between two looks at how the actors are, at most; and between two looks for room for more of them.
LOOK_EVERY = 1.0
GROW_EVERY = 10.0
#: Seconds that Ray's own server may not answer. After a minute Ray ends this process, and nobody could say why.
HEAD_PATIENCE = 20.0
#: So often may actors be lost before the first round: something kills them each time.
MOST_LOSSES = 5


# Actors' classes, which answer pings while they compute. Made once: every process that meets one keeps it for good.
_remote: Any = ray.remote  # whose types do not know of concurrency groups
_CLIENT, _SERVER = (_remote(concurrency_groups={HEALTH: 1})(cls) for cls in (ClientActor, ServerActor))


@dataclass
class _Watched:
    """An actor, where it is, and the ping that it has not yet answered."""

    actor: Actor
    seat: Seat | None = None
    opening: Any = None
    since: float = field(default_factory=time.monotonic)
    ping: Any = None
    sent: float = 0.0


def forwarded(operation: "Callable[Concatenate[Server, P], R]") -> "Callable[Concatenate[RayServer, P], R]":
    """Return an operation of the server for its handle on the driver."""

    @wraps(operation)
    def ask(self: "RayServer", *arguments: P.args, **named: P.kwargs) -> R:
        return self._ask(operation.__name__, *arguments, **named)

    return ask


class RayServer:
    """The driver's handle of the server actor and the client actors; looks like a Server.

    Every call may raise LostError, when an actor has died or has not answered for `ray.lost_after` seconds. `recover`
    then makes a federation of what is left and what can be started, in its first state: the caller restores the rest.
    """

    def __init__(self, config: Config, prepared: Callable[[], Prepared], idle: IdleActors | None = None) -> None:
        """Start the actors, which import while `prepared` still loads the data; take `idle` ones first."""
        self._config = config
        # Modules of a user's own stay imported in an actor: a change to their files would not reach a second run.
        self._idle = None if named_code(config) or named_objects(config) else idle
        self._epoch = 1
        self._clients: list[_Watched] = []
        self._joining: list[_Watched] = []
        self._cut_off: set[str] = set()  # nodes whose actors do not answer, though Ray may still believe in them
        self._tick = min(LOOK_EVERY, config.ray.lost_after / 4)
        self._looked = self._grown = self._head_seen = self._head_asked = time.monotonic()
        self._running: Any = None
        #: What was lost and replaced before the first round, in words.
        self.lost_at_start: list[str] = []
        wanted = actors_that_fit(config.ray, config.partition.clients)
        try:
            self._clients = [_Watched(actor) for actor in self._first_clients(wanted)]
            self._server = _Watched(self._first_server())
            self.prepared = prepared()
            while len(self._clients) > self.prepared.partition.clients:
                end_actor(self._clients.pop().actor)
            # Once into the object store, where all actors of a node read them without copying.
            self._data = (ray.put(self.prepared.dataset), ray.put(self.prepared.partition))
            self._start()
        except BaseException:
            self.close()
            raise

    # -- what a Server does ------------------------------------------------------------------------------------

    def run_round(self, number: int) -> RoundRecord:
        """Run one round on the server actor."""
        if self._head_is_there():
            self._grow()
        return self._ask("run_round", number)

    snapshot = forwarded(Server.snapshot)
    changed_since = forwarded(Server.changed_since)
    kept_states = forwarded(Server.kept_states)
    restore = forwarded(Server.restore)
    adopt = forwarded(Server.adopt)
    describe_models = forwarded(Server.describe_models)
    own_models = forwarded(Server.own_models)

    def close(self) -> None:
        """End the actors."""
        server = getattr(self, "_server", None)
        for watched in [*self._clients, *self._joining, *([server] if server else [])]:
            end_actor(watched.actor)

    def retire(self) -> None:
        """After a run that has ended well: keep its actors for the next, if there are places for idle ones."""
        if self._idle is None:
            return self.close()
        for client in self._joining:
            end_actor(client.actor)
        options = self._client_options()
        idle = [IdleActor(c.actor, str(options), c.seat.node) for c in self._clients if c.seat]
        return self._idle.add([*idle, IdleActor(self._server.actor, self._server_options(), "")])

    @property
    def seats(self) -> list[Seat]:
        """Where the client actors sit."""
        return [client.seat for client in self._clients if client.seat is not None]

    def describe(self) -> str:
        """Say in a line where the clients live."""
        actors, count = len(self.seats), len({seat.node for seat in self.seats})
        devices = sorted({seat.device.partition(":")[0] for seat in self.seats})
        return f"{actors} client actor{'s' * (actors > 1)} on {count} node{'s' * (count > 1)} ({', '.join(devices)})"

    # -- starting ----------------------------------------------------------------------------------------------

    def _first_clients(self, wanted: int) -> list[Actor]:
        """Return client actors for the start of the run: idle ones, and new ones for those that are missing."""
        strategy = client_strategy(self._config.ray)
        options = str(self._client_options())
        found = [idle.actor for idle in self._idle.take(options, wanted)] if self._idle else []
        if len(found) < wanted:
            IDLE.release(keep=[self._server_options()])  # they may hold what the new ones need
        return [*found, *(self._new_client(strategy) for _ in range(wanted - len(found)))]

    def _first_server(self) -> Actor:
        found = self._idle.take(self._server_options(), 1) if self._idle else []
        return found[0].actor if found else self._new_server()

    def _client_options(self) -> dict[str, Any]:
        config, group = self._config.ray, placement_group(self._config.ray)
        return {
            "num_cpus": config.cpus_per_actor,
            "num_gpus": config.gpu_share,
            "resources": config.resources or None,
            "placement_group": None if group is None else group.id.hex(),
        }

    def _server_options(self) -> str:
        return f"server on {self._config.ray.server}"

    def _new_client(self, strategy: Any) -> Actor:
        options = {name: value for name, value in self._client_options().items() if name != "placement_group"}
        return _CLIENT.options(**options, scheduling_strategy=strategy).remote(search_path(self._config))

    def _new_server(self, trusted: Collection[str] | None = None) -> Actor:
        strategy = server_strategy(self._config.ray, trusted)
        return _SERVER.options(num_cpus=0, scheduling_strategy=strategy).remote(search_path(self._config))

    def _open(self, client: _Watched) -> Any:
        client.opening = client.actor.open.remote(self._epoch, self.prepared.config, *self._data)
        return client.opening

    def _start(self) -> None:
        """Wait until everyone is ready; actors that are lost on the way are replaced, as they are later."""
        self._wait_for_seats()
        act: Callable[[], str | None] = self._settle_and_open
        while True:
            try:
                recovered = act()
            except NobodyLeftError:
                raise
            except LostError as error:
                if len(self.lost_at_start) >= MOST_LOSSES:
                    raise LostError(f"actors were lost again and again while starting, last by {error}") from None
                self.lost_at_start.append(f"while starting: {error}")
                act = self._recover_at_start
            else:
                self.lost_at_start += [recovered] if recovered else []
                return

    def _settle_and_open(self) -> None:
        self._settle_trainer()
        self._open_server()

    def _recover_at_start(self) -> str:
        recovered = self.recover()
        self._settle_and_open()
        return recovered

    def _wait_for_seats(self) -> None:
        """Wait for the first actors; they must all start, or what is missing is told. Those that die are replaced."""
        calls = [self._open(client) for client in self._clients]
        _, waiting = ray.wait(calls, num_returns=len(calls), timeout=self._config.ray.start_timeout)
        seated = []
        for client in self._clients:
            if client.opening in waiting:
                continue
            try:
                client.seat = get([client.opening])[0]
                seated.append(client)
            except LostError as error:
                self.lost_at_start.append(f"while starting: {error}")
        if waiting:
            raise InputError(explain_unplaced(self._config.ray, len(waiting), len(calls)))
        if len(seated) < len(calls):
            self._clients = seated
            self._replace(len(calls) - len(seated))

    def _settle_trainer(self) -> None:
        """Let the actors try the vectorised trainer if they have GPUs: here on the driver there may be none."""
        config = self.prepared.config
        if config.training != "vectorised" or not config.ray.gpu_share:
            return
        tried = self._wait([c.actor.call.remote(self._epoch, "try_together", None) for c in self._clients])
        reason = next((reason for reason in tried if reason is not None), None)
        settled = after_trying(self.prepared, self._config.training, reason)
        if settled is not self.prepared:
            self.prepared = settled
            self._wait_for_seats()

    def _open_server(self) -> None:
        ready = self.prepared
        actors = [client.actor for client in self._clients]
        self._ask_actor("open", self._config, ready.facts, ready.partition.true_cluster, self._epoch, actors)

    # -- watching ----------------------------------------------------------------------------------------------

    def _ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Let the server do an operation."""
        return self._ask_actor("call", operation, *arguments, **named)

    def _ask_actor(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Call the server actor, and look after all actors while it works."""
        self._running = getattr(self._server.actor, operation).remote(*arguments, **named)
        return self._wait([self._running])[0]

    def _wait(self, calls: Sequence[Any]) -> list[Any]:
        waiting = list(calls)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=self._tick)
            get(done)  # the first failure is enough
            if waiting:
                self._look()
        return get(calls)

    def _look(self) -> None:
        """Ping everyone who owes no answer; give up on those who have owed one for too long."""
        self._head_is_there()
        now = time.monotonic()
        slept = now - self._looked > 10 * self._tick + 5  # this process itself stood still: blame nobody for it
        self._looked = now
        silent = []
        for watched in [*self._clients, self._server]:
            if watched.ping is not None and ray.wait([watched.ping], timeout=0)[0]:
                answered, watched.ping = watched.ping, None
                get([answered])
            if watched.ping is None or slept:
                watched.ping, watched.sent = watched.actor.ping.remote(), now
            elif now - watched.sent > self._config.ray.lost_after:
                silent.append(watched)
        if silent:
            self._give_up(silent)
            raise LostError(f"{len(silent)} actors did not answer for ray.lost_after={self._config.ray.lost_after:g} s")

    def _head_is_there(self) -> bool:
        """Whether Ray's own server has answered at the last look; if it has not for too long, the run ends."""
        now = time.monotonic()
        if now - self._head_asked >= LOOK_EVERY:
            self._head_asked = now
            if head_answers():
                self._head_seen = now
        silent = self._head_asked - self._head_seen
        if silent > HEAD_PATIENCE:
            raise NobodyLeftError(f"Ray's own server (GCS) has not answered for {silent:.0f} s")
        return silent == 0

    def _give_up(self, silent: Sequence[_Watched]) -> None:
        for watched in silent:
            end_actor(watched.actor)
            if watched.seat is not None:
                self._cut_off.add(watched.seat.node)
        # A node with actors that do answer is not cut off: one of its processes hangs.
        self._cut_off -= {c.seat.node for c in self._clients if c.seat and c not in silent and c.ping is None}

    # -- recovering --------------------------------------------------------------------------------------------

    def recover(self) -> str:
        """Make a federation of the actors that answer and new ones for the rest; return what was lost and replaced."""
        self._epoch += 1
        had = len(self._clients)
        server_lost = not self._answering([self._server]) or not self._is_idle()
        self._clients = self._answering(self._clients)
        left = len(self._clients)
        if server_lost:
            end_actor(self._server.actor)
            self._server = _Watched(self._new_server({seat.node for seat in self.seats}))
        self._wait([client.actor.renew.remote(self._epoch) for client in self._clients])
        self._replace(had - left)
        self._open_server()
        parts = ["the server actor"] * server_lost + [f"{had - left} of {had} client actors"] * (left < had)
        return f"lost {' and '.join(parts) or 'a call'}; going on with {self.describe()}"

    def _answering(self, actors: Sequence[_Watched]) -> list[_Watched]:
        """Return the actors that are alive; the others are killed for good, should they only hang."""
        for watched in actors:
            watched.ping, watched.sent = watched.actor.ping.remote(), time.monotonic()
        pings = [watched.ping for watched in actors]
        ray.wait(pings, num_returns=len(pings), timeout=self._config.ray.lost_after)
        alive, silent = [], []
        for watched in actors:
            done = bool(ray.wait([watched.ping], timeout=0)[0])
            if done and _succeeded(watched.ping):
                watched.ping = None
                alive.append(watched)
            else:
                end_actor(watched.actor)
                silent += [] if done else [watched]
        self._give_up(silent)
        return alive

    def _is_idle(self) -> bool:
        """Whether the server's last call has ended, as it should once the dead are known to be dead."""
        return self._running is None or bool(ray.wait([self._running], timeout=self._config.ray.lost_after)[0])

    def _replace(self, missing: int) -> None:
        """Start client actors for those that are lost, where there is room; if some do not start, go on without.

        Without any left, wait for a node to come for as long as actors may take to start.
        """
        config = self._config.ray
        end = time.monotonic() + (max(30.0, config.lost_after) if self._clients else config.start_timeout)
        coming = self._start_more(missing)
        while coming or not self._clients:
            if time.monotonic() > end:
                break
            calls = [client.opening for client in coming]
            ray.wait(calls, num_returns=len(calls), timeout=1.0) if calls else time.sleep(1.0)
            coming = [c for c in coming if not self._seated(c) and not _failed(c.opening)]
            if not coming and not self._clients:
                coming = self._start_more(missing)
        for client in coming:
            end_actor(client.actor)
        if not self._clients:
            raise NobodyLeftError(
                "too little is left to go on: no client actor is, and none could be started within"
                f" ray.start_timeout={config.start_timeout:g} s"
            )

    def _grow(self) -> None:
        """Let actors join for which there is room by now: on nodes that have come, or for some that were lost."""
        for client in self._joining:
            if self._seated(client):
                self._ask_actor("join", [client.actor])
            elif time.monotonic() - client.since > self._config.ray.start_timeout or _failed(client.opening):
                end_actor(client.actor)
        self._joining = [c for c in self._joining if c.seat is None and not _failed(c.opening)]
        if time.monotonic() - self._grown < GROW_EVERY:
            return
        self._grown = time.monotonic()
        most = min(self._config.ray.actors or sys.maxsize, self.prepared.partition.clients)
        self._joining += self._start_more(most - len(self._clients) - len(self._joining))

    def _start_more(self, count: int) -> list[_Watched]:
        """Start up to `count` client actors on nodes that have room for them."""
        strategies = self._room()[: max(0, count)]
        started = [_Watched(self._new_client(strategy)) for strategy in strategies]
        for client in started:
            self._open(client)
        return started

    def _room(self) -> list[Any]:
        taken = [client.seat.node for client in self._clients if client.seat]
        return free_places(self._config.ray, taken, len(self._joining), self._cut_off, self._nodes_with_data())

    def _nodes_with_data(self) -> set[str]:
        """Return the nodes whose object stores have a copy; none if the data are so small that they have no place."""
        where = get_local_object_locations(list(self._data))
        return {node for found in where.values() for node in found["node_ids"]}

    def _seated(self, client: _Watched) -> bool:
        """Take a new client actor in, if it is ready."""
        if not ray.wait([client.opening], timeout=0)[0] or not _succeeded(client.opening):
            return False
        client.seat = get([client.opening])[0]
        self._clients.append(client)
        return True


@contextmanager
def ray_server(config: Config, prepared: Callable[[], Prepared], idle: IdleActors | None = None) -> Iterator[RayServer]:
    """Start the actors on the Ray this process is connected to, or take `idle` ones; in the end, let go of them."""
    server = RayServer(config, prepared, idle)
    try:
        yield server
    except BaseException:
        server.close()
        raise
    server.retire()


def _succeeded(call: Any) -> bool:
    try:
        ray.get(call, timeout=0)
    except RayError:
        return False
    return True


def _failed(call: Any) -> bool:
    return bool(ray.wait([call], timeout=0)[0]) and not _succeeded(call)
