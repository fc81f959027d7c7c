"""A run's federation on Ray: the cluster, the actors, and the server that supervises them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayfl.actors.cluster import advice, connected
from rayfl.actors.supervisor import RayServer, ray_server
from rayfl.config import Config
from rayfl.simulation.opening import warn_of_other_cpus
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.screen import Screen


@contextmanager
def opened_on_ray(
    config: Config, prepared: Callable[[], Prepared], screen: Screen
) -> Iterator[tuple[RayServer, Prepared]]:
    """Start Ray, or join one, with client actors and a server actor; stop what was started in the end."""
    for warning in advice(config.ray):
        screen.warn(warning)
    screen.say("starting Ray and the client actors ...")
    with connected(config.ray), ray_server(config, prepared) as server:
        for loss in server.lost_at_start:
            screen.warn(loss)
        screen.say(server.describe())
        warn_of_other_cpus(server.prepared.config, [s.cpu for s in server.seats if s.device == "cpu"], screen)
        yield server, server.prepared
