"""Actors of finished runs, kept for the next run of this process, because starting an actor takes seconds.

An idle actor still occupies its CPUs and GPUs. So actors are kept only where nobody else waits for these resources: on
a local Ray that rayfl itself started, and inside `held()`.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from rayfl.actors.cluster import session

log = logging.getLogger(__name__)

#: Seconds in which an idle actor must answer; an actor that does not answer in time is killed.
ANSWER_WITHIN = 10.0


@dataclass(frozen=True)
class IdleActor:
    """An actor without a run, the options it was started with, and its node."""

    actor: Any
    options: str
    node: str


class IdleActors:
    """The idle actors of this process."""

    def __init__(self) -> None:
        self._actors: list[IdleActor] = []
        self._session = ""
        self._holders = 0
        self._lock = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the actors of all runs in this block, on any Ray; release them at the end of the block."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                last = self._holders == 0
            if last:
                self.release()

    @property
    def are_held(self) -> bool:
        """Whether a `held()` block is open."""
        return self._holders > 0

    def add(self, actors: Sequence[IdleActor]) -> None:
        """Add actors whose run has ended well, after they have dropped the run's data."""
        rested = _those_that_answer(actors, "rest")
        with self._lock:
            self._forget_other_sessions()
            self._actors += rested

    def take(self, options: str, count: int) -> list[IdleActor]:
        """Return up to `count` idle actors that were started with these options, spread over their nodes."""
        with self._lock:
            self._forget_other_sessions()
            fitting = [idle for idle in self._actors if idle.options == options]
            taken = _by_turns(fitting)[:count]
            self._actors = [idle for idle in self._actors if idle not in taken]
        return _those_that_answer(taken, "ping")

    def release(self, keep: Iterable[str] = ()) -> None:
        """Kill the idle actors to free their resources, except those that were started with the options in `keep`."""
        wanted = set(keep)
        with self._lock:
            self._forget_other_sessions()
            unwanted = [idle for idle in self._actors if idle.options not in wanted]
            self._actors = [idle for idle in self._actors if idle.options in wanted]
        for idle in unwanted:
            end_actor(idle.actor)

    def _forget_other_sessions(self) -> None:
        """Forget actors of an earlier connection to Ray: they ended with it."""
        current = session()
        if current != self._session:
            self._actors, self._session = [], current


#: One per process, because a process has one connection to Ray.
IDLE = IdleActors()


def end_actor(actor: Any) -> None:
    """Kill an actor, if it is still alive."""
    try:
        ray.kill(actor)
    except (RayError, ValueError) as error:
        log.debug("an actor could not be killed: %s", error)


def _by_turns(actors: Sequence[IdleActor]) -> list[IdleActor]:
    """Order actors so that the first n of them are spread over the nodes, for any n."""
    turn: dict[str, int] = {}
    numbered: list[tuple[int, int, IdleActor]] = []
    for idle in actors:
        turn[idle.node] = turn.get(idle.node, -1) + 1
        numbered.append((turn[idle.node], len(numbered), idle))
    return [idle for _, _, idle in sorted(numbered, key=lambda entry: entry[:2])]


def _those_that_answer(actors: Sequence[IdleActor], operation: str) -> list[IdleActor]:
    """Call `operation` on all of them, return those that answer, and kill those that do not."""
    calls = [getattr(idle.actor, operation).remote() for idle in actors]
    done: list[Any] = []
    if calls:
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=ANSWER_WITHIN)
    answering = []
    for idle, call in zip(actors, calls, strict=True):
        try:
            if call not in done:
                raise TimeoutError
            ray.get(call, timeout=0)
            answering.append(idle)
        except (RayError, TimeoutError):
            end_actor(idle.actor)
    return answering
