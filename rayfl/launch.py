"""Starts and resumes runs on the federation that their config names: in this process, or on Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rayfl.config import Config
from rayfl.results import Run
from rayfl.simulation import starting
from rayfl.simulation.callbacks import Callback
from rayfl.simulation.opening import Opener, RunsRounds, opened_here
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.screen import Screen
from rayfl.simulation.shortening import shorten
from rayfl.simulation.starting import Overrides


def simulate(
    config: Config, screen: Screen | None = None, callbacks: Sequence[Callback] = (), keep: bool = False
) -> Run:
    """Run a config to its end. With `keep`, a Ray that is started for it stays for the next runs of this process."""
    return starting.simulate(config, partial(opener, keep=keep), screen, callbacks)


def resume(
    path: str | Path,
    overrides: Overrides = (),
    screen: Screen | None = None,
    callbacks: Sequence[Callback] = (),
    keep: bool = False,
) -> Run:
    """Continue the run in a folder, with bit-identical results and any number of rounds; for `keep`, see `simulate`."""
    shorten(path, overrides, screen)
    return starting.resume(path, partial(opener, keep=keep), overrides, screen, callbacks)


def opener(config: Config, keep: bool = False) -> Opener:
    """Return the function that starts the federation that a config names."""
    if config.federation == "serial":
        return opened_here
    from rayfl.actors.opening import opened_on_ray  # importing Ray takes a second, so only if it is used

    return partial(opened_on_ray, keep=keep)


@contextmanager
def open_server(prepared: Prepared, screen: Screen) -> Iterator[RunsRounds]:
    """Start the prepared federation with its server; stop it at the end."""
    with opener(prepared.config)(prepared.config, lambda: prepared, screen) as (server, _):
        yield server
