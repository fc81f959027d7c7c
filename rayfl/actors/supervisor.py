"""The driver's side of a run on Ray: starts the actors, watches them, and replaces those that are lost."""

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

#: LOOK_EVERY: maximum seconds between two checks of the actors. GROW_EVERY: seconds between two checks whether more
#: actors fit.
LOOK_EVERY = 1.0
GROW_EVERY = 10.0
#: Seconds for which Ray's own server may be silent. After a minute Ray would end this process without any message.
HEAD_PATIENCE = 20.0
#: How many losses of actors are tolerated before the first round; with more, something kills every new actor.
MOST_LOSSES = 5


# The remote classes of the actors, which answer pings while they compute. They are created once, because every process
# that receives such a class keeps it until it ends.
_remote: Any = ray.remote  # its type annotations lack concurrency groups
_CLIENT, _SERVER = (_remote(concurrency_groups={HEALTH: 1})(cls) for cls in (ClientActor, ServerActor))


@dataclass
class _Watched:
    """An actor, its place, and the ping that it has not yet answered."""

    actor: Actor
    seat: Seat | None = None
    opening: Any = None
    since: float = field(default_factory=time.monotonic)
    ping: Any = None
    sent: float = 0.0


def forwarded(operation: "Callable[Concatenate[Server, P], R]") -> "Callable[Concatenate[RayServer, P], R]":
    """Return a method for the driver's handle that calls this operation on the server actor."""

    @wraps(operation)
    def ask(self: "RayServer", *arguments: P.args, **named: P.kwargs) -> R:
        return self._ask(operation.__name__, *arguments, **named)

    return ask


class RayServer:
    """The driver's handle to the server actor and the client actors, with the interface of a Server.

    Every call may raise LostError, when an actor has died or has not answered for `ray.lost_after` seconds. `recover`
    then builds a federation from the remaining actors and new ones, in its initial state; the caller restores the
    state of the run.
    """

    def __init__(self, config: Config, prepared: Callable[[], Prepared], idle: IdleActors | None = None) -> None:
        """Start the actors, or reuse `idle` ones; new actors import their modules while `prepared` loads the data."""
        self._config = config
        # An actor keeps the user's modules imported, so a second run in it would not see changes to their files.
        self._idle = None if named_code(config) or named_objects(config) else idle
        self._epoch = 1
        self._clients: list[_Watched] = []
        self._joining: list[_Watched] = []
        self._cut_off: set[str] = set()  # nodes whose actors do not answer, even if Ray still lists them as alive
        self._tick = min(LOOK_EVERY, config.ray.lost_after / 4)
        self._looked = self._grown = self._head_seen = self._head_asked = time.monotonic()
        self._running: Any = None
        #: Messages about actors that were lost and replaced before the first round.
        self.lost_at_start: list[str] = []
        wanted = actors_that_fit(config.ray, config.partition.clients)
        try:
            self._clients = [_Watched(actor) for actor in self._first_clients(wanted)]
            self._server = _Watched(self._first_server())
            self.prepared = prepared()
            while len(self._clients) > self.prepared.partition.clients:
                end_actor(self._clients.pop().actor)
            # Put into the object store once; all actors of a node read the data from there without copying.
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
        """After a run that has ended well: keep its actors for the next run if idle actors are kept, else end them."""
        if self._idle is None:
            return self.close()
        for client in self._joining:
            end_actor(client.actor)
        options = self._client_options()
        idle = [IdleActor(c.actor, str(options), c.seat.node) for c in self._clients if c.seat]
        return self._idle.add([*idle, IdleActor(self._server.actor, self._server_options(), "")])

    @property
    def seats(self) -> list[Seat]:
        """Where the client actors run."""
        return [client.seat for client in self._clients if client.seat is not None]

    def describe(self) -> str:
        """Say in one line where the clients are."""
        actors, count = len(self.seats), len({seat.node for seat in self.seats})
        devices = sorted({seat.device.partition(":")[0] for seat in self.seats})
        return f"{actors} client actor{'s' * (actors > 1)} on {count} node{'s' * (count > 1)} ({', '.join(devices)})"

    # -- starting ----------------------------------------------------------------------------------------------

    def _first_clients(self, wanted: int) -> list[Actor]:
        """Return client actors for the start of the run: idle ones first, and new ones for the rest."""
        strategy = client_strategy(self._config.ray)
        options = str(self._client_options())
        found = [idle.actor for idle in self._idle.take(options, wanted)] if self._idle else []
        if len(found) < wanted:
            IDLE.release(keep=[self._server_options()])  # idle actors may occupy resources that new ones need
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
        """Wait until all actors are ready; actors that are lost meanwhile are replaced, as during the run."""
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
        """Wait for the first actors. Raise InputError if some cannot be placed in time; replace those that die."""
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
        """Let actors with GPUs try the vectorised trainer, because the driver itself may have no GPU."""
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
        truth = (ready.partition.true_cluster, ready.partition.changes)
        self._ask_actor("open", self._config, ready.facts, *truth, self._epoch, actors)

    # -- watching ----------------------------------------------------------------------------------------------

    def _ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Call an operation of the server."""
        return self._ask_actor("call", operation, *arguments, **named)

    def _ask_actor(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Call the server actor, and watch all actors while it works."""
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
        """Ping every actor that has answered its last ping; give up those that have been silent for too long."""
        self._head_is_there()
        now = time.monotonic()
        # If this process itself was suspended, the silence is not the actors' fault.
        slept = now - self._looked > 10 * self._tick + 5
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
        """Whether Ray's own server answered at the last check; if it has been silent for too long, the run ends."""
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
        # A node where other actors still answer is not cut off: only one of its processes hangs.
        self._cut_off -= {c.seat.node for c in self._clients if c.seat and c not in silent and c.ping is None}

    # -- recovering --------------------------------------------------------------------------------------------

    def recover(self) -> str:
        """Build a federation from the actors that answer and new ones; return a message about what was lost."""
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
        """Return the actors that are alive; the others are killed, in case they only hang."""
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
        """Whether the server's last call has ended; after a loss, it ends once Ray has noticed the dead actors."""
        return self._running is None or bool(ray.wait([self._running], timeout=self._config.ray.lost_after)[0])

    def _replace(self, missing: int) -> None:
        """Start client actors in place of lost ones, where there is room; if some do not start, go on without them.

        If no client actor is left at all, wait up to `ray.start_timeout` for a node to join.
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
                "no client actor is left, and none could be started within"
                f" ray.start_timeout={config.start_timeout:g} s"
            )

    def _grow(self) -> None:
        """Start and add actors where there is room now: on nodes that have joined, or in place of lost actors."""
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
        """Return the nodes whose object stores hold the data; none for small data, which Ray sends inline."""
        where = get_local_object_locations(list(self._data))
        return {node for found in where.values() for node in found["node_ids"]}

    def _seated(self, client: _Watched) -> bool:
        """Add a new client actor if it is ready; return whether it was."""
        if not ray.wait([client.opening], timeout=0)[0] or not _succeeded(client.opening):
            return False
        client.seat = get([client.opening])[0]
        self._clients.append(client)
        return True


@contextmanager
def ray_server(config: Config, prepared: Callable[[], Prepared], idle: IdleActors | None = None) -> Iterator[RayServer]:
    """Start the actors on the Ray this process is connected to, or reuse `idle` ones; release them at the end."""
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
