"""Actors that die or hang, in one Ray: the run continues, and its tables equal those of an undisturbed one."""

import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import Driver, actors, alive, children, kill, rounds_in, wait_until
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.errors import ClientError, MethodError, RayflError
from rayfl.launch import resume, simulate
from rayfl.results import Run, load
from rayfl.simulation import simulation
from rayfl.simulation.screen import Screen

SMALL = ["local.steps=3", "local.lr=0.1", "participation.fraction=0.6", "rounds=8"]
FEDAC = [*SMALL, "method.tune_from=2", "method.tune_every=2"]
SR_FCA = [*SMALL, "method.name=sr_fca", "method.one_shot_rounds=2", "method.refine_rounds=2"]
MOMENTUM = [*SMALL, "method.name=fedavg", "local.momentum=0.9", "local.keep_momentum=true"]


class Saboteur(Screen):
    """Does harm after some rounds, and listens to what is said of it."""

    def __init__(self, deeds: dict[int, Callable[[], None]]) -> None:
        super().__init__(quiet=True)
        self._deeds = dict(deeds)
        self.warnings: list[str] = []

    def show_round(self, record: Any) -> None:
        super().show_round(record)
        self._deeds.pop(record.number, lambda: None)()

    def warn(self, text: str) -> None:
        super().warn(text)
        self.warnings.append(text)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], Run]:
    """Runs without Ray, each made once."""
    done: dict[str, Run] = {}

    def make(words: list[str]) -> Run:
        key = " ".join(words)
        if key not in done:
            folder = tmp_path_factory.mktemp("undisturbed")
            config = load_config(None, [*words, "federation=serial", f"output.dir={folder}"])
            done[key] = simulate(config, Screen(quiet=True))
        return done[key]

    return make


def soon(deed: Callable[[], None], delay: float) -> Callable[[], None]:
    """Do it in a moment: in the middle of the next round."""
    return lambda: threading.Timer(delay, deed).start()


def released() -> None:
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)


def kill_clients(count: int) -> None:
    pids = actors("ClientActor")
    assert pids
    for pid in pids[:count]:
        kill(pid)


def kill_server() -> None:
    (pid,) = actors("ServerActor")
    kill(pid)


def kill_all() -> None:
    kill_server()
    kill_clients(99)


FAULTS: dict[str, tuple[list[str], dict[int, Callable[[], None]], str]] = {
    "a client actor between two rounds": (FEDAC, {3: lambda: kill_clients(1)}, r"1 of 2 client actors"),
    "a client actor in the middle of a round": (FEDAC, {3: soon(lambda: kill_clients(1), 0.1)}, r"1 of 2 client"),
    "every client actor": (SR_FCA, {5: lambda: kill_clients(99)}, r"2 of 2 client actors"),
    "client actors whose clients keep only their momentum": (MOMENTUM, {4: lambda: kill_clients(1)}, r"1 of 2 client"),
    "the server actor": (FEDAC, {4: kill_server}, r"the server actor"),
    "everybody at once": (SR_FCA, {3: soon(kill_all, 0.05)}, r"the server actor and 2 of 2"),
    "two losses in a row": (
        FEDAC,
        {3: lambda: kill_clients(1), 4: lambda: kill_clients(1)},
        r"1 of 2 client actors",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_lost_is_replaced_and_leaves_no_trace_but_a_note(
    what: str, ray_session: None, tmp_path: Path, undisturbed: Callable[[list[str]], Run]
) -> None:
    words, deeds, told = FAULTS[what]
    screen = Saboteur(deeds)
    config = load_config(None, [*words, f"output.dir={tmp_path}", "ray.actors=2", "output.checkpoint_every=2"])
    run = simulate(config, screen)
    assert_same(undisturbed(words), run)
    notes = recoveries(run)
    assert len(notes) == len(deeds), notes
    assert all(re.search(told, note) for note in notes), notes
    assert all("going on with 2 client actors on 1 node" in note for note in notes), notes
    assert len(screen.warnings) >= len(deeds)


def test_an_actor_that_hangs_counts_as_lost_after_a_while(
    ray_session: None, tmp_path: Path, undisturbed: Callable[[list[str]], Run]
) -> None:
    screen = Saboteur({3: lambda: kill(actors("ClientActor")[0], signal.SIGSTOP)})
    words = [*FEDAC, f"output.dir={tmp_path}", "ray.actors=2", "output.checkpoint_every=1", "ray.lost_after=10"]
    begin = time.monotonic()
    run = simulate(load_config(None, words), screen)
    assert time.monotonic() - begin < 90
    assert_same(undisturbed(FEDAC), run)
    assert len(recoveries(run)) == 1
    assert "did not answer for ray.lost_after=10 s" in screen.warnings[0]


def test_a_round_that_kills_its_actors_every_time_ends_the_run_and_can_be_resumed(
    ray_session: None,
    tmp_path: Path,
    own_code: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_code(
        "deadly",
        """
import os
from pathlib import Path
from torch import nn

class Net(nn.Module):
    calls = 0

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        Net.calls += self.training
        if Net.calls > 30 and not Path(PATH).exists():
            os._exit(7)
        return self.head(x.flatten(1))
""".replace("PATH", repr(str(tmp_path / "mended"))),
    )
    monkeypatch.setattr(simulation, "MOST_LOSSES", 2)
    words = ["model.name=deadly:Net", "training=loop", "method.name=ditto", "local.steps=2", "rounds=4"]
    common = [*words, f"output.dir={tmp_path}", "output.checkpoint_every=1"]
    with pytest.raises(RayflError, match=r"round 1 was lost 2 times in a row.*rayfl resume") as error:
        simulate(load_config(None, [*common, "name=a", "ray.actors=2"]), Screen(quiet=True))
    assert error.value.exit_code == 1
    (tmp_path / "mended").touch()
    serial = simulate(load_config(None, [*common, "name=b", "federation=serial"]), Screen(quiet=True))
    assert_same(serial, resume(tmp_path / "a", ["model.name=deadly:Net"], Screen(quiet=True)))


def test_an_error_in_a_clients_own_code_is_no_loss(own_actors: None, tmp_path: Path, failing_module: str) -> None:
    screen = Saboteur({})
    config = load_config(None, [f"output.dir={tmp_path}", f"model.name={failing_module}", "ray.actors=2"])
    with pytest.raises(ClientError, match=r"client \d+ failed in round 1:\nTraceback(.|\n)*the cat ate it"):
        simulate(config, screen)
    assert not screen.warnings
    released()


EXITS = {
    "a method's round": (
        "method.name=leaving:Leaving",
        r"method\.name=leaving:Leaving failed in round 2:\nTraceback(.|\n)*SystemExit: 0\n",
    ),
    "a client's training": (
        "model.name=leaving:Trained",
        r"client \d+ failed in round 1:\nTraceback(.|\n)*SystemExit: 0\n",
    ),
    "a client's test": ("model.name=leaving:Tested", r"clients failed in 'evaluate':\nTraceback(.|\n)*SystemExit: 0\n"),
}
LEAVING = """
import sys
from torch import nn
from rayfl.methods.fedavg import FedAvg

class Leaving(FedAvg):
    def round(self, cohort):
        super().round(cohort)
        if self.fed.round == 2:
            sys.exit(0)

CALLS = {}

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        CALLS[id(self)] = CALLS.get(id(self), 0) + 1
        if CALLS[id(self)] > 5 and self.training == self.leaves_in_training:
            sys.exit(0)
        return self.head(x.flatten(1))

class Trained(Net):
    leaves_in_training = True

class Tested(Net):
    leaves_in_training = False
"""


@pytest.mark.parametrize("federation", ["serial", "ray"])
@pytest.mark.parametrize("where", EXITS)
def test_sys_exit_in_a_users_code_is_an_error_of_that_code_and_neither_an_end_nor_a_loss(
    where: str, federation: str, ray_session: None, tmp_path: Path, own_code: Callable[[str, str], None]
) -> None:
    own_code("leaving", LEAVING)
    word, told = EXITS[where]
    screen = Saboteur({})
    words = [f"output.dir={tmp_path}", "name=a", "method.name=fedavg", "training=loop", "rounds=3", "ray.actors=1"]
    config = load_config(None, [*words, f"federation={federation}", "output.checkpoint_every=1", word])
    resumable = rf"once that is fixed, go on after round \d with: rayfl resume {tmp_path}/a {re.escape(word)}$"
    with pytest.raises(RayflError, match=told + resumable) as error:
        simulate(config, screen)
    assert error.value.exit_code == 1
    assert not screen.warnings


@pytest.mark.parametrize("federation", ["serial", "ray"])
def test_an_error_in_a_methods_round_says_how_to_go_on(
    federation: str, ray_session: None, tmp_path: Path, own_code: Callable[[str, str], None]
) -> None:
    own_code(
        "wrong",
        f"""
from pathlib import Path
from rayfl.methods.fedavg import FedAvg

class Wrong(FedAvg):
    def round(self, cohort):
        super().round(cohort)
        if self.fed.round == 3 and not Path({str(tmp_path / "mended")!r}).exists():
            raise KeyError("the cat ate it")
""",
    )
    common = [f"output.dir={tmp_path}", "method.name=wrong:Wrong", "local.steps=2", "rounds=4"]
    words = [*common, "name=a", f"federation={federation}", "ray.actors=1", "output.checkpoint_every=1"]
    with pytest.raises(
        MethodError,
        match=r"method\.name=wrong:Wrong failed in round 3:\nTraceback(.|\n)*KeyError: 'the cat ate it'\n"
        rf"once that is fixed, go on after round 2 with: rayfl resume {tmp_path}/a method\.name=wrong:Wrong$",
    ):
        simulate(load_config(None, words), Saboteur({}))
    (tmp_path / "mended").touch()
    undisturbed = simulate(load_config(None, [*common, "name=b", "federation=serial"]), Screen(quiet=True))
    assert_same(undisturbed, resume(tmp_path / "a", ["method.name=wrong:Wrong"], Screen(quiet=True)))


def test_actors_that_come_later_are_of_the_class_of_the_first(own_actors: None) -> None:
    """Every process keeps each class of actors that it has met; one for each recovery would add up."""
    from rayfl.actors.supervisor import RayServer
    from rayfl.simulation.preparation import prepare

    p = prepare(load_config(None, ["ray.actors=2", "method.name=fedavg"]))
    server = RayServer(p.config, lambda: p)
    try:
        before = {watched.actor._ray_actor_id for watched in server._clients}
        kill_clients(1)
        assert "lost 1 of 2 client actors" in server.recover()
        assert len({watched.actor._ray_actor_id for watched in server._clients} - before) == 1
        classes = {str(watched.actor._ray_actor_creation_function_descriptor) for watched in server._clients}
        assert len(classes) == 1
    finally:
        server.close()


def test_orders_of_a_server_that_died_do_not_touch_what_was_restored(own_actors: None) -> None:
    """Its calls may still wait in an actor's queue when the next server begins."""
    import ray
    from ray.exceptions import RayTaskError

    from rayfl.actors.supervisor import RayServer
    from rayfl.simulation.preparation import prepare

    p = prepare(load_config(None, ["ray.actors=1", "method.name=fedavg"]))
    server = RayServer(p.config, lambda: p)
    try:
        actor = server._clients[0].actor
        server.recover()
        with pytest.raises(RayTaskError, match="before a recovery"):
            ray.get(actor.call.remote(1, "forget", None), timeout=60)
    finally:
        server.close()


def test_a_killed_driver_leaves_no_orphans_and_its_run_goes_on(
    tmp_path: Path, undisturbed: Callable[[list[str]], Run]
) -> None:
    """With its own Ray, which must end too."""
    words = [*FEDAC, "rounds=60", "ray.actors=2"]
    driver = Driver(tmp_path, [*words, "output.checkpoint_every=2"])
    assert driver.wait_for_rounds(4), driver.log.read_text()
    # Ray's own agents end when they notice, which may take a while.
    family = {pid for pid, title in children(driver.process.pid).items() if "Agent" not in title}
    assert len(actors("ClientActor", driver.process.pid)) == 2
    driver.process.kill()
    driver.process.wait(60)

    def gone() -> bool:
        return not any(alive(pid) for pid in family)

    wait_until(gone, "the end of everything that the driver had started", 60)
    assert 4 <= rounds_in(tmp_path / "a") < 60
    run = resume(tmp_path / "a", ["federation=serial"], Screen(quiet=True))
    assert_same(undisturbed([*FEDAC, "rounds=60"]), run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_on_ray_checkpoints_and_releases_the_actors(number: int, own_actors: None, tmp_path: Path) -> None:
    """On a Ray that others use, so that the actors must be released one by one."""
    import ray

    address = ray.get_runtime_context().gcs_address
    words = [*FEDAC, "rounds=500", "ray.actors=2", f"ray.address={address}", "output.checkpoint_every=1000"]
    driver = Driver(tmp_path, words)
    assert driver.wait_for_rounds(3), driver.log.read_text()
    driver.process.send_signal(number)
    assert driver.process.wait(60) == 128 + number, driver.log.read_text()
    done = len(load(tmp_path / "a").rounds)
    assert f"go on after round {done} with: rayfl resume {tmp_path}/a" in driver.log.read_text()
    released()
