"""Actors that are reused by the next run: it starts fast, and no state of one run may leak into another."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import actors, kill, wait_until
from forks import finished
from tables import assert_same

from rayfl.actors.idle import IDLE
from rayfl.config import load_config
from rayfl.errors import ClientError
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.screen import Screen

SMALL = ["rounds=3", "local.steps=3", "participation.fraction=0.6", "ray.actors=2"]
#: Runs that differ in all that an actor holds: method, clients, network, trainer, kept models.
RUNS = [
    [*SMALL, "method.tune_from=2"],
    [*SMALL, "method.name=fedavg", "partition.clients=8", "model.name=mlp", "seed=3"],
    [*SMALL, "method.name=ditto", "partition.kind=iid", "training=loop", "local.momentum=0.9"],
    [*SMALL, "method.tune_from=2"],
]


class Watching(Screen):
    """Notes which processes the actors of a run are."""

    def __init__(self, deed: Callable[[], None] = lambda: None) -> None:
        super().__init__(quiet=True)
        self.pids: set[int] = set()
        self.warnings: list[str] = []
        self._deed = deed

    def show_round(self, record: Any) -> None:
        super().show_round(record)
        self.pids |= {*actors("ClientActor"), *actors("ServerActor")}
        self._deed()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def run(tmp_path: Path, own_actors: None) -> Callable[..., tuple[Run, Watching]]:
    def make(words: list[str], *more: str) -> tuple[Run, Watching]:
        screen = Watching()
        return simulate(load_config(None, [*words, f"output.dir={tmp_path}", *more]), screen), screen

    return make


@pytest.fixture
def held(own_actors: None) -> Iterator[None]:
    with IDLE.held():
        yield
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the idle actors", 30)


def test_runs_after_one_another_share_their_actors_and_nothing_else(
    held: None, run: Callable[..., tuple[Run, Watching]]
) -> None:
    seen = []
    for words in RUNS:
        on_ray, screen = run(words)
        in_process, _ = run(words, "federation=serial")
        assert_same(in_process, on_ray)
        seen.append(screen.pids)
    assert len(seen[0]) == 3, "two client actors and a server actor"
    assert all(pids == seen[0] for pids in seen), seen


def test_an_idle_actor_that_has_died_is_replaced_without_a_word(
    held: None, run: Callable[..., tuple[Run, Watching]]
) -> None:
    first, screen = run(RUNS[1])
    for pid in (actors("ClientActor")[0], actors("ServerActor")[0]):
        kill(pid)
    again, later = run(RUNS[1])
    assert_same(first, again)
    assert not later.warnings
    assert len(later.pids) == 3
    assert len(later.pids & screen.pids) == 1


def test_actors_of_another_size_make_room_for_those_that_are_needed(
    held: None, run: Callable[..., tuple[Run, Watching]]
) -> None:
    run(RUNS[1], "ray.cpus_per_actor=2")  # takes all four CPUs
    wide, screen = run(RUNS[1], "ray.actors=1")
    assert_same(run(RUNS[1], "federation=serial")[0], wide)
    assert not screen.warnings
    wait_until(lambda: len(actors("ClientActor")) == 1, "the end of the others", 30)


CHANGING = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
"""


def test_code_of_a_users_own_gets_actors_of_its_own(
    held: None, run: Callable[..., tuple[Run, Watching]], own_code: Callable[[str, str], None]
) -> None:
    text = CHANGING
    words = [*SMALL, "method.name=fedavg", "model.name=changing:Net", "partition.clients=8"]
    own_code("changing", text.replace("WIDTH", "5"))
    first, _ = run(words)
    own_code("changing", text.replace("WIDTH", "50"))
    second, _ = run(words)
    assert_same(run(words, "federation=serial")[0], second)
    assert first.rounds["bytes_up"].iloc[0] * 5 < second.rounds["bytes_up"].iloc[0], "the changed file was read"


def test_actors_of_a_run_that_failed_are_not_kept(
    held: None, run: Callable[..., tuple[Run, Watching]], failing_module: str
) -> None:
    with pytest.raises(ClientError, match="the cat ate it"):
        run([*SMALL, f"model.name={failing_module}"])
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)


def test_without_being_asked_to_actors_on_a_ray_of_the_users_own_are_not_kept(
    run: Callable[..., tuple[Run, Watching]], tmp_path: Path
) -> None:
    import rayfl

    config = load_config(None, [*RUNS[1], "rounds=1", f"output.dir={tmp_path}"])
    rayfl.run(config, quiet=True)
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)


SECOND_RUN = """
import time, ray, rayfl

class Clock(rayfl.Callback):
    def on_start(self, run): self.first = None
    def on_round_end(self, record): self.first = self.first or time.perf_counter()

keys = {"rounds": 2, "local": {"steps": 2}, "ray": {"actors": 2}, "output": {"dir": "runs"}, "quiet": True}
for seed in (0, 1):
    begin, clock = time.perf_counter(), Clock()
    rayfl.run(seed=seed, callbacks=[clock], **keys)
    print(clock.first - begin, ray.is_initialized())
"""


def test_the_second_run_of_a_process_finds_ray_and_its_actors_ready(tmp_path: Path) -> None:
    done = finished(["-c", SECOND_RUN], 240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (line.split() for line in done.stdout.splitlines())
    assert first[1] == second[1] == "True", "the Ray that rayfl started is left running"
    assert float(second[0]) < float(first[0]) / 2, done.stdout
    assert not done.stderr.strip(), done.stderr
