"""A run's federation on Ray: the cluster, the actors, and the server that supervises them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayfl.actors.cluster import advice, connected
from rayfl.actors.idle import IDLE
from rayfl.actors.supervisor import RayServer, ray_server
from rayfl.config import Config
from rayfl.simulation.opening import warn_of_other_cpus
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.screen import Screen


@contextmanager
def opened_on_ray(
    config: Config, prepared: Callable[[], Prepared], screen: Screen, keep: bool = False
) -> Iterator[tuple[RayServer, Prepared]]:
    """Start Ray or connect to a running one, with client actors and a server actor; at the end, stop what was started.

    With `keep`, a local Ray and its actors stay for the next run of this process.
    """
    for warning in advice(config.ray):
        screen.warn(warning)
    screen.say("starting Ray and the client actors ...")
    with (
        connected(config.ray, keep) as ours,
        ray_server(config, prepared, IDLE if IDLE.are_held or (keep and ours) else None) as server,
    ):
        for loss in server.lost_at_start:
            screen.warn(loss)
        screen.say(server.describe())
        warn_of_other_cpus(server.prepared.config, [s.cpu for s in server.seats if s.device == "cpu"], screen)
        yield server, server.prepared
