"""Reaching a Ray cluster, and counting beforehand what fits on it."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor

import ray

from rayfl.config import RayConfig
from rayfl.errors import InputError

_SLACK = 1e-9  # 3 * (1 / 3) must count as a whole GPU


@contextmanager
def connected(config: RayConfig) -> Iterator[None]:
    """Use the Ray this process has, or the one at `ray.address` or $RAY_ADDRESS, or start a local one.

    What was not started here is not shut down here.
    """
    if ray.is_initialized():
        yield
        return
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        _knock(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if address == "local" else None,
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"ray.address={address}: no Ray cluster answers there ({reason}); start one with 'ray start --head',"
            " or leave ray.address and RAY_ADDRESS empty for a local one"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Fail at once where nothing listens: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


@dataclass(frozen=True)
class Node:
    """What one node offers, and how many actors of this run's size that is."""

    name: str
    cpus: float
    gpus: float
    actors: int


def nodes(config: RayConfig) -> list[Node]:
    """Return the cluster's live nodes with the number of client actors that fit on each when it is idle."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            cpus, gpus = node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)
            found.append(Node(node["NodeManagerHostname"], cpus, gpus, _fit(config, cpus, gpus)))
    return found


def _fit(config: RayConfig, cpus: float, gpus: float) -> int:
    """Count actors on one node. Ray packs fractions per device, so what is left of each GPU is lost."""
    share = config.gpu_share
    bounds = []
    if config.cpus_per_actor:
        bounds.append(floor(cpus / config.cpus_per_actor + _SLACK))
    if share:
        bounds.append(floor(1 / share + _SLACK) * int(gpus) if share <= 1 else floor(gpus / share + _SLACK))
    return min(bounds) if bounds else max(1, int(cpus))


def actors_that_fit(config: RayConfig, clients: int | None) -> int:
    """Return how many client actors to start; refuse what can never be placed, and say what could."""
    offered = nodes(config)
    room = sum(n.actors for n in offered)
    each = f"{config.cpus_per_actor:g} CPUs" + (f" and {config.gpu_share:g} GPUs" if config.gpu_share else "")
    has = "; ".join(f"{n.name} has {n.cpus:g} CPUs, {n.gpus:g} GPUs: {n.actors} fit" for n in offered)
    if room == 0:
        raise InputError(f"no client actor fits: each takes {each}, but {has}; {_cure(config, offered)}")
    if config.actors is not None and config.actors > room:
        raise InputError(
            f"ray.actors={config.actors} do not fit: each takes {each}, but {has};"
            f" use ray.actors={room} or less, or {_cure(config, offered)}"
        )
    return min(config.actors or room, clients or room)


def _cure(config: RayConfig, offered: list[Node]) -> str:
    if config.gpu_share and not any(n.gpus for n in offered):
        return "leave out ray.gpus_per_actor and ray.actors_per_gpu, or add nodes with GPUs"
    return "lower ray.cpus_per_actor" + (" or raise ray.actors_per_gpu" if config.gpu_share else "")


def advice(config: RayConfig) -> list[str]:
    """Return warnings about settings that work but waste."""
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
