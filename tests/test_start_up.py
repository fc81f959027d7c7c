"""Actors that die and signals that come before the first round."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Driver, actors, alive, children, kill, wait_until
from tables import assert_same

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.simulation.screen import Screen
from rayfl.simulation.signals import Stopped, not_swallowed

SMALL = ["local.steps=2", "rounds=3", "method.name=ditto"]


class Listener(Screen):
    """Remembers what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        super().say(text)
        self.said.append(text)

    def warn(self, text: str) -> None:
        super().warn(text)
        self.warnings.append(text)


@pytest.mark.parametrize(("kind", "count"), [("ClientActor", 1), ("ClientActor", 2), ("ServerActor", 1)])
def test_actors_lost_while_they_start_are_replaced(kind: str, count: int, own_actors: None, tmp_path: Path) -> None:
    killed: list[int] = []
    before = {*actors("ClientActor"), *actors("ServerActor")}

    def kill_the_first() -> None:
        end = time.monotonic() + 60
        while len(killed) < count and time.monotonic() < end:
            for pid in set(actors(kind)) - {*before, *killed}:
                if len(killed) < count:
                    kill(pid)
                    killed.append(pid)
            time.sleep(0.01)

    screen = Listener()
    killer = threading.Thread(target=kill_the_first)
    killer.start()
    run = simulate(load_config(None, [*SMALL, f"output.dir={tmp_path}", "ray.actors=2"]), screen)
    killer.join(60)
    assert len(killed) == count
    assert any("while starting" in warning for warning in screen.warnings), screen.warnings
    assert "2 client actors on 1 node (cpu)" in screen.said
    serial = simulate(load_config(None, [*SMALL, f"output.dir={tmp_path}", "federation=serial"]), Screen(quiet=True))
    assert_same(serial, run)
    wait_until(lambda: not {*actors("ClientActor"), *actors("ServerActor")} - before, "the end of the actors", 30)


def test_an_actor_that_fails_by_itself_says_why_and_is_not_started_again_and_again(
    own_actors: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from rayfl.actors import supervisor as ray_server
    from rayfl.actors.client_actor import HEALTH
    from rayfl.errors import RayflError

    class Broken:
        def __init__(self, _: object) -> None:
            raise RuntimeError("the cat ate it")

        def open(self, *_: object) -> None: ...

        @ray.method(concurrency_group=HEALTH)
        def ping(self) -> None: ...

    remote: Callable = ray.remote
    monkeypatch.setattr(ray_server, "_CLIENT", remote(concurrency_groups={HEALTH: 1})(Broken))
    begin = time.monotonic()
    with pytest.raises(RayflError, match=r"an actor cannot start:\n(.|\n)*RuntimeError: the cat ate it"):
        simulate(load_config(None, [*SMALL, f"output.dir={tmp_path}", "ray.actors=1"]), Screen(quiet=True))
    assert time.monotonic() - begin < 60
    assert not list(tmp_path.iterdir())


def handles_sigterm(pid: int) -> bool:
    """Whether a process has its own handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


class TermAtTheEnd:
    """Gets SIGTERM while it is deleted, where Python drops every exception."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_a_signal_whose_exception_python_drops_still_ends_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    def leave(number: int, _: object) -> None:
        sys.exit(number)

    descriptor = signal.set_wakeup_fd(-1)
    before = signal.signal(signal.SIGTERM, leave)
    hook = sys.unraisablehook
    went_on = False
    try:
        with pytest.raises(Stopped) as stopped, not_swallowed(signal.SIGTERM):
            dropped = TermAtTheEnd()
            del dropped
            went_on = True
        with not_swallowed(signal.SIGTERM):  # that signal is over
            pass
        assert sys.unraisablehook is hook
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(descriptor)
    assert went_on
    assert stopped.value.exit_code == 143
    assert capfd.readouterr().err == ""


MOMENTS: dict[str, Callable[[Driver], bool]] = {
    "as soon as it is handled": lambda driver: handles_sigterm(driver.process.pid),
    "while Ray starts": lambda driver: any("gcs_server" in title for title in children(driver.process.pid).values()),
    "while the actors start": lambda driver: bool(actors("ClientActor", driver.process.pid)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"), [*[(signal.SIGTERM, m) for m in MOMENTS], (signal.SIGINT, "while Ray starts")]
)
def test_a_signal_during_start_up_ends_the_run_with_a_message_and_leaves_nothing(
    number: int, moment: str, tmp_path: Path
) -> None:
    driver = Driver(tmp_path, [*SMALL, "ray.actors=1"], fresh=True)
    wait_until(lambda: MOMENTS[moment](driver) or driver.process.poll() is not None, moment, 60)
    family = set(children(driver.process.pid))
    driver.process.send_signal(number)
    while driver.process.poll() is None:
        family |= set(children(driver.process.pid))
        time.sleep(0.05)
    log = driver.log.read_text()
    assert driver.process.returncode == 128 + number, log
    assert log.splitlines()[-1] == "stopped while starting; nothing was written"
    assert "Traceback" not in log
    assert not driver.path.exists()
    wait_until(lambda: not any(alive(pid) for pid in family), "the end of everything that it had started", 60)
