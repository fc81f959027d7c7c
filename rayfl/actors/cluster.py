"""Connecting to a Ray cluster, and counting how many actors fit on it before any is started."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import ray
from ray.job_config import JobConfig
from ray.util.placement_group import PlacementGroup, get_current_placement_group, get_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayfl.config import RayConfig
from rayfl.errors import InputError
from rayfl.simulation.signals import STARTING, Stopped, not_swallowed

#: Sessions of local Ray clusters that runs of this process have started and left running.
_KEPT: set[str] = set()
_SLACK = 1e-9  # for rounding: 3 * (1 / 3) must count as a whole GPU


@contextmanager
def connected(config: RayConfig, keep: bool = False) -> Iterator[bool]:
    """Use the Ray that this process is connected to, or the one at `ray.address` or $RAY_ADDRESS, or start a local one.

    Only a Ray that was started here is shut down at the end. With `keep`, a local Ray that was started here is left
    running for the next run of this process. Yields True if the Ray in use is kept in this way.
    """
    if ray.is_initialized():
        yield session() in _KEPT
        return
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        _knock(address)
        with not_swallowed(signal.SIGTERM):
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False if address == "local" else None,
                job_config=_job_config(),
            )
    except SystemExit as left:
        if left.code == signal.SIGTERM:  # Ray has replaced our signal handler by its own
            raise Stopped(signal.SIGTERM, STARTING) from None
        raise
    except Stopped:  # possibly after Ray had started
        ray.shutdown()
        raise
    except Exception as error:  # Ray raises plain Exceptions when its processes do not start
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if address == "local":
            raise InputError(
                f"Ray cannot start on this machine: {reason}; make room in its temporary folder, or name another"
                " with a short path: RAY_TMPDIR=/short/path rayfl ...; without Ray: federation=serial"
            ) from None
        raise InputError(
            f"ray.address={address}: no Ray cluster answers there ({reason}); start one with 'ray start --head',"
            " or leave ray.address and RAY_ADDRESS empty for a local one"
        ) from None
    if in_main:
        # Ray's own handler exits with 15; shells expect 128 + 15 from a process that SIGTERM ended.
        default = before in (None, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, (lambda *_: sys.exit(128 + signal.SIGTERM)) if default else before)
    keep = keep and address == "local"
    if keep:
        _KEPT.add(session())
    try:
        yield keep
    finally:
        if not keep:
            ray.shutdown()
        if in_main:
            signal.signal(signal.SIGTERM, before)


def _job_config() -> JobConfig:
    """Keep Ray from putting the current folder first on its workers' path, where it would hide installed packages.

    There are two exceptions: when the current folder holds rayfl itself, the workers need it; and for a job that Ray
    has started (`ray job submit`), Ray itself ships the folder to the workers.
    """
    needed = Path.cwd() == Path(__file__).parents[2] or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    return JobConfig(_client_job=not needed)


def session() -> str:
    """Return a name for this process's connection to Ray, different for each connection; empty if there is none."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


def gcs_address() -> str:
    """Return the address at which other processes can reach the Ray that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def head_answers() -> bool:
    """Whether the cluster's GCS (Ray's own server) accepts connections; without it Ray soon ends every process."""
    try:
        _knock(ray.get_runtime_context().gcs_address)
    except OSError:
        return False
    return True


def _knock(address: str) -> None:
    """Fail at once if nothing listens at the address: Ray itself would keep trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


@dataclass(frozen=True)
class Node:
    """The resources of one node, or of one bundle of a placement group, and how many of this run's actors fit there."""

    id: str
    name: str
    resources: dict[str, float]
    actors: int

    @property
    def offer(self) -> str:
        """A sentence with the node's resources and the number of actors that fit."""
        custom = {k: v for k, v in self.resources.items() if k not in ("CPU", "GPU") and ":" not in k}
        others = "".join(f", {v:g} {k}" for k, v in custom.items() if k not in _OWN_OF_RAY)
        has = f"{self.resources.get('CPU', 0):g} CPUs, {self.resources.get('GPU', 0):g} GPUs{others}"
        return f"{self.name} has {has}: {self.actors} fit"


_OWN_OF_RAY = ("memory", "object_store_memory")


def needs(config: RayConfig) -> dict[str, float]:
    """Return the resources that one client actor takes."""
    wanted = {"CPU": config.cpus_per_actor, "GPU": config.gpu_share, **config.resources}
    return {name: amount for name, amount in wanted.items() if amount}


def nodes(config: RayConfig) -> list[Node]:
    """Return the live nodes, or the placement group's bundles, and how many client actors each could hold when idle."""
    group = placement_group(config)
    if group is not None:
        return [
            Node("", f"bundle {i} of the placement group", has, _fit(config, has))
            for i, has in enumerate(_free_in_bundles(group))
        ]
    return [
        Node(node["NodeID"], node["NodeManagerHostname"], node["Resources"], _fit(config, node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _fit(config: RayConfig, has: dict[str, float]) -> int:
    """Count actors on one node. Ray never splits a fraction over two GPUs, so the remainder of each GPU is lost."""
    bounds = []
    for name, amount in needs(config).items():
        if name == "GPU" and amount <= 1:
            bounds.append(floor(1 / amount + _SLACK) * int(has.get(name, 0)))
        else:
            bounds.append(floor(has.get(name, 0) / amount + _SLACK))
    return min(bounds) if bounds else max(1, int(has.get("CPU", 0)))


def placement_group(config: RayConfig) -> PlacementGroup | None:
    """Return the placement group that the config names, or the one this process runs in, such as a Tune trial's."""
    if config.placement_group is None:
        return get_current_placement_group()
    try:
        return get_placement_group(config.placement_group)
    except ValueError:
        raise InputError(
            f"ray.placement_group={config.placement_group}: there is no placement group of this name; create it with"
            " ray.util.placement_group(bundles, name=...) before the run, in the same namespace"
        ) from None


def _free_in_bundles(group: PlacementGroup) -> list[dict[str, float]]:
    """Return each bundle's resources, minus those that this process itself takes."""
    bundles = [dict(bundle) for bundle in group.bundle_specs]
    if get_current_placement_group() == group:
        mine = ray.get_runtime_context().get_assigned_resources()
        # Ray does not say which bundle this process is in; a Tune trial's process is in the first that can hold it.
        home = next((b for b in bundles if all(b.get(k, 0) >= v for k, v in mine.items())), {})
        for name in mine.keys() & home.keys():
            home[name] -= mine[name]
    return bundles


def client_strategy(config: RayConfig) -> Any:
    """Return how Ray should place the client actors: inside the placement group if there is one, else spread out."""
    group = placement_group(config)
    return "SPREAD" if group is None else PlacementGroupSchedulingStrategy(group)


def free_places(
    config: RayConfig, taken: Sequence[str], joining: int, cut_off: Collection[str], holding: Collection[str]
) -> list[Any]:
    """Return a place for each client actor that could be started now, in addition to those on the nodes `taken`.

    The places go to the nodes in turn. Nodes that already hold the data come first: nothing has to be sent to them.
    """
    offered = nodes(config)
    if placement_group(config) is not None:
        room = sum(n.actors for n in offered) - len(taken) - joining
        return [client_strategy(config)] * max(0, room)
    free = {n.id: n.actors - list(taken).count(n.id) for n in offered if n.id not in cut_off}
    by_turns = [id for turn in range(max(free.values(), default=0)) for id, room in free.items() if turn < room]
    places = sorted(by_turns, key=lambda id: id not in holding)
    places = places[: max(0, len(places) - joining)]
    return [NodeAffinitySchedulingStrategy(id, soft=False) for id in places]


def server_strategy(config: RayConfig, trusted: Collection[str] | None = None) -> NodeAffinitySchedulingStrategy:
    """Return how Ray should place the server actor: on the head node, on the driver's node, or on a named node.

    After a loss, the configured node is chosen only if it is in `trusted`, else the driver's node.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    if config.server == "driver":
        chosen = [here]
    elif config.server == "head":
        chosen = [n["NodeID"] for n in alive if "node:__internal_head__" in n["Resources"]]
    else:
        keys = ("NodeManagerHostname", "NodeManagerAddress", "NodeName", "NodeID")
        chosen = [n["NodeID"] for n in alive if config.server in [n.get(key) for key in keys]]
        if not chosen and trusted is None:
            names = ", ".join(sorted({f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})" for n in alive}))
            raise InputError(f"ray.server={config.server}: there is no such node; use head, driver, or one of: {names}")
    if trusted is not None:
        chosen = [node for node in chosen if node in trusted]
    # With soft=True, Ray would put an actor that takes no CPU on any node.
    return NodeAffinitySchedulingStrategy(chosen[0] if chosen else here, soft=False)


def actors_that_fit(config: RayConfig, clients: int | None) -> int:
    """Return how many client actors to start; refuse a number that can never fit, and say what would."""
    offered = nodes(config)
    room = sum(n.actors for n in offered)
    each = " and ".join(f"{v:g} {k}{'s' * (k in ('CPU', 'GPU'))}" for k, v in (needs(config) or {"CPU": 0}).items())
    has = "; ".join(n.offer for n in offered)
    if room == 0:
        raise InputError(f"no client actor fits: each takes {each}, but {has}; {_cure(config, offered)}")
    if config.actors is not None and config.actors > room:
        raise InputError(
            f"ray.actors={config.actors} do not fit: each takes {each}, but {has};"
            f" use ray.actors={room} or less, or {_cure(config, offered)}"
        )
    return min(config.actors or room, clients or room)


def _cure(config: RayConfig, offered: list[Node]) -> str:
    missing = [k for k in config.resources if not any(k in n.resources for n in offered)]
    if missing:
        return f"start nodes with ray start --resources='{{\"{missing[0]}\": ...}}', or leave out ray.resources"
    if config.gpu_share and not any(n.resources.get("GPU") for n in offered):
        return "leave out ray.gpus_per_actor and ray.actors_per_gpu, or add nodes with GPUs"
    return "lower ray.cpus_per_actor" + (" or raise ray.actors_per_gpu" if config.gpu_share else "")


def advice(config: RayConfig) -> list[str]:
    """Return warnings about settings that work but waste resources."""
    share = config.gpu_share
    if 0 < share < 1 and abs(1 / share - round(1 / share)) > 1e-6:
        per_gpu = floor(1 / share + _SLACK)
        return [
            f"ray.gpus_per_actor={share:g} does not divide 1: {per_gpu} actors fit on a GPU and"
            f" {1 - per_gpu * share:.2g} of it stays unused; use ray.actors_per_gpu={per_gpu}"
        ]
    return []


def explain_unplaced(config: RayConfig, waiting: int, wanted: int) -> str:
    """Say why actors that would fit on an idle cluster have not started."""
    free = ray.available_resources()
    return (
        f"{waiting} of {wanted} client actors did not start within ray.start_timeout={config.start_timeout:g} s:"
        f" the cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free now; wait for other work"
        " to end, lower ray.actors, or raise ray.start_timeout"
    )
