"""Where a run's clients are trained: the interface of functions that start a federation, and the in-process one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rayfl.config import Config
from rayfl.simulation.checkpoints import Saves
from rayfl.simulation.final_models import ServesModels
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord, Server


class RunsRounds(Saves, ServesModels, Protocol):
    """A server, in this process or on Ray."""

    def run_round(self, number: int) -> RoundRecord:
        """Run one round."""

    def recover(self) -> str:
        """After a loss: start again with the remaining actors, and return a message about what was lost."""


#: Starts a federation: first everything that needs no data, then it calls the given function to get the data. It yields
#: the server and the prepared run, in which it may have changed the trainer.
Opener = Callable[[Config, Callable[[], Prepared], Screen], AbstractContextManager[tuple[RunsRounds, Prepared]]]

#: Returns the function that starts the federation that a config names.
OpenerOf = Callable[[Config], Opener]


@contextmanager
def opened_here(
    config: Config, prepared: Callable[[], Prepared], screen: Screen
) -> Iterator[tuple[RunsRounds, Prepared]]:
    """Start a federation in this process, with its server."""
    from rayfl.client.choice import cpu_capability
    from rayfl.client.worker import Worker
    from rayfl.federation.serial import SerialFederation

    ready = prepared()
    warn_of_other_cpus(ready.config, [cpu_capability()], screen)
    fed = SerialFederation(ready.facts, Worker(ready.config, ready.dataset, ready.partition))
    try:
        yield Server(config, fed, ready.partition.true_cluster, ready.partition.changes), ready
    finally:
        fed.close()


def warn_of_other_cpus(config: Config, found: Sequence[str], screen: Screen) -> None:
    """Warn that bits may differ if clients are trained on another kind of CPU than the one the run was prepared for."""
    others = sorted(set(found) - {str(config.cpu_capability)})
    if others:
        screen.warn(
            f"this run was prepared for CPUs with {config.cpu_capability}, but some clients are trained on CPUs with"
            f" {', '.join(others)}: results may differ in their last bits from those of one kind of CPU;"
            f" the trainer stays {config.training}"
        )
