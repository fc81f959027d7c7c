"""Faults at moments and of kinds that the other files leave out: each ends in equal tables, or with a clear message."""

import gc
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults import Driver, actors, alive, children, kill, nodes, wait_until
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.federation.serial import SerialFederation
from rayfl.launch import simulate
from rayfl.results import Run, load
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord
from rayfl.simulation.signals import Stopped

SMALL = ["local.steps=3", "local.lr=0.1", "participation.fraction=0.6", "rounds=8", "method.name=ditto"]
ENDLESS = """
import time
from pathlib import Path
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        while self.training and Path("loops").exists():
            pass
        return self.head(x.flatten(1))
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("undisturbed")
    return simulate(load_config(None, [*SMALL, "federation=serial", f"output.dir={folder}"]), Screen(quiet=True))


def session_address() -> str:
    import ray

    return f"ray.address={ray.get_runtime_context().gcs_address}"


class Listener(Screen):
    """Does something once a round is done, and remembers warnings."""

    def __init__(self, after: int, deed: Callable[[], None]) -> None:
        super().__init__(quiet=True)
        self._after, self._deed = after, deed
        self.warnings: list[str] = []

    def show_round(self, record: RoundRecord) -> None:
        super().show_round(record)
        if record.number == self._after:
            self._deed()

    def warn(self, text: str) -> None:
        super().warn(text)
        self.warnings.append(text)


# -- the server actor ----------------------------------------------------------------------------------------------


def test_a_server_actor_killed_twice_in_a_row(ray_session: None, tmp_path: Path, reference: Run) -> None:
    """The second one while it starts in the place of the first."""
    killed: list[int] = []

    def kill_two() -> None:
        end = time.monotonic() + 60
        while len(killed) < 2 and time.monotonic() < end:
            for pid in set(actors("ServerActor")) - set(killed):
                kill(pid)
                killed.append(pid)
            time.sleep(0.01)

    screen = Listener(3, lambda: threading.Thread(target=kill_two).start())
    words = [*SMALL, f"output.dir={tmp_path}", "ray.actors=2", "output.checkpoint_every=2"]
    run = simulate(load_config(None, words), screen)
    assert len(killed) == 2
    assert_same(reference, run)
    assert recoveries(run)


def test_a_server_actor_that_hangs_counts_as_lost_after_a_while(
    ray_session: None, tmp_path: Path, reference: Run
) -> None:
    screen = Listener(3, lambda: kill(actors("ServerActor")[0], signal.SIGSTOP))
    words = [*SMALL, f"output.dir={tmp_path}", "ray.actors=2", "output.checkpoint_every=1", "ray.lost_after=10"]
    begin = time.monotonic()
    run = simulate(load_config(None, words), screen)
    assert time.monotonic() - begin < 90
    assert_same(reference, run)
    assert "did not answer for ray.lost_after=10 s" in screen.warnings[0]


# -- the driver ----------------------------------------------------------------------------------------------------


def test_a_driver_killed_as_soon_as_its_folder_is_there_can_be_resumed(
    own_actors: None, tmp_path: Path, reference: Run
) -> None:
    driver = Driver(tmp_path, [*SMALL, session_address(), "ray.actors=1"])
    end = time.monotonic() + 60
    while not driver.path.exists() and time.monotonic() < end:
        time.sleep(0.001)
    driver.kill_and_resume()
    assert_same(reference, driver.finish())


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_any_number_of_ctrl_c_ends_with_the_message_and_the_exit_code_of_one(gap: float, tmp_path: Path) -> None:
    """Signals also come during the clean-up, while the run says how to resume it."""
    driver = Driver(tmp_path, [*SMALL, "rounds=4000", "federation=serial"])
    assert driver.wait_for_rounds(3), driver.log.read_text()
    while driver.process.poll() is None:
        driver.process.send_signal(signal.SIGINT)
        time.sleep(gap)
    assert driver.process.returncode == 130, driver.log.read_text()
    assert driver.log.read_text().splitlines()[-1].endswith(f"rayfl resume {driver.path}")


def test_ctrl_c_again_while_the_run_tidies_up_cuts_nothing_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round that it waited for is over. Three Ctrl-C in `make chaos` once ended a run with exit code 1 here."""
    closed: list[str] = []
    close = SerialFederation.close

    def interrupted(federation: SerialFederation) -> None:
        signal.raise_signal(signal.SIGINT)
        close(federation)
        signal.raise_signal(signal.SIGINT)
        closed.append("to the end")

    monkeypatch.setattr(SerialFederation, "close", interrupted)
    words = [*SMALL, "federation=serial", f"output.dir={tmp_path}", "name=a"]
    with pytest.raises(Stopped, match=rf"go on after round 3 with: rayfl resume {tmp_path}/a$") as stopped:
        simulate(load_config(None, words), Listener(3, lambda: signal.raise_signal(signal.SIGINT)))
    assert stopped.value.exit_code == 130
    assert closed == ["to the end"]


def test_a_signal_after_the_end_of_a_run_does_not_make_it_a_failure(tmp_path: Path) -> None:
    """The folder is printed, and Python takes its time to leave."""
    driver = Driver(tmp_path, [*SMALL, "rounds=2", "federation=serial"], fresh=True)
    wait_until(lambda: driver.log.read_text().endswith(f"{driver.path}\n"), "the folder on the last line", 120)
    while driver.process.poll() is None:
        driver.process.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert driver.process.returncode == 0, driver.log.read_text()


def test_three_ctrl_c_in_a_row(own_actors: None, tmp_path: Path, reference: Run) -> None:
    driver = Driver(tmp_path, [*SMALL, "rounds=400", session_address(), "ray.actors=2"])
    assert driver.wait_for_rounds(3), driver.log.read_text()
    for _ in range(3):
        driver.process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert driver.process.wait(60) == 130, driver.log.read_text()
    log = driver.log.read_text()
    assert "Traceback" not in log
    assert f"rayfl resume {driver.path}" in log
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)


@pytest.mark.parametrize("federation", ["serial", "ray"])
def test_an_endless_loop_in_a_users_network_ends_with_a_second_ctrl_c(
    federation: str, own_actors: None, tmp_path: Path
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS.replace('"loops"', repr(str(tmp_path / "loops"))))
    words = ["model.name=endless:Net", "training=loop", *SMALL, "rounds=400", f"federation={federation}"]
    driver = Driver(tmp_path, [*words, session_address(), "ray.actors=1"])
    assert driver.wait_for_rounds(2), driver.log.read_text()
    (tmp_path / "loops").touch()
    time.sleep(1)
    driver.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert driver.process.poll() is None  # it waits for the round to end, which it never does
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.wait(60) == 130, driver.log.read_text()
    assert f"rayfl resume {driver.path}" in driver.log.read_text()
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)


# -- Ray itself ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agents() -> Iterator[set[int]]:
    """Ray's own agents, which end a minute after its server: this is looked at after the other tests."""
    found: set[int] = set()
    yield found
    wait_until(lambda: not any(alive(pid) for pid in found), "the end of Ray's agents", 90)


def test_when_rays_own_server_dies_the_run_ends_and_can_be_resumed(
    agents: set[int], tmp_path: Path, reference: Run
) -> None:
    driver = Driver(tmp_path, [*SMALL, "rounds=1000", "ray.actors=1", "output.checkpoint_every=2"])
    assert driver.wait_for_rounds(3), driver.log.read_text()
    family = children(driver.process.pid)
    (gcs,) = [pid for pid, title in family.items() if "gcs_server" in title]
    agents |= {pid for pid, title in family.items() if "Agent" in title}
    kill(gcs)
    code = driver.process.wait(120)
    last = driver.log.read_text().splitlines()[-1]
    assert code == 1
    assert "Ray's own server (GCS) has not answered for" in last
    assert f"rayfl resume {driver.path}" in last
    wait_until(
        lambda: not any(alive(pid) for pid in family.keys() - agents),
        "the end of everything that the driver had started",
        90,
    )
    rows = load(driver.path).rounds["accuracy"]
    assert rows[:8].tolist() == reference.rounds["accuracy"].tolist()


def test_an_object_store_smaller_than_what_a_round_shares(tmp_path: Path) -> None:
    """Ray puts what does not fit onto the disk."""
    words = ["method.name=ifca", "method.clusters=30", "model.name=mlp", "model.options.hidden=10000", "rounds=1"]
    words += ["local.steps=1", "partition.clients=4", "data.limit=400"]  # the clusters' models are 90 MB
    serial = simulate(
        load_config(None, [*words, "federation=serial", f"output.dir={tmp_path}", "name=serial"]), Screen(quiet=True)
    )
    with nodes(1, num_cpus=2, object_store_memory=80 * 2**20) as cluster:
        driver = Driver(tmp_path / "small", [*words, f"ray.address={cluster.address}", "ray.actors=2"])
        assert_same(serial, driver.finish())


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 8 MB; its path is short, since Ray's sockets lie there."""
    if os.geteuid():
        pytest.skip("mounting a small disk takes root")
    with tempfile.TemporaryDirectory(prefix="d") as name:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "t", name], check=False).returncode:
            pytest.skip("this machine does not let one mount")
        yield Path(name)
        subprocess.run(["umount", "-l", name], check=True)


def test_a_full_temporary_folder_is_told_before_there_is_a_run(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(small_disk))
    (small_disk / "other").write_bytes(bytes(2**23 - 2**14))
    driver = Driver(tmp_path / "runs", [*SMALL, "ray.actors=1"])
    code = driver.process.wait(200)
    log = driver.log.read_text()
    assert code == 2, log
    assert log.splitlines()[-1].startswith("error: Ray cannot start on this machine"), log
    assert not driver.path.exists()


def test_a_temporary_folder_that_becomes_full_does_not_matter(
    small_disk: Path, tmp_path: Path, reference: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's logs are cut short; rayfl needs none of them."""
    monkeypatch.setenv("RAY_TMPDIR", str(small_disk))
    driver = Driver(tmp_path / "runs", [*SMALL, "ray.actors=2"])
    assert driver.wait_for_rounds(1), driver.log.read_text()
    with suppress(OSError), (small_disk / "other").open("wb") as file:
        while True:
            file.write(bytes(2**16))
    assert_same(reference, driver.finish())


# -- again and again -----------------------------------------------------------------------------------------------


def held() -> dict[str, int]:
    """Return what this process has open."""
    gc.collect()
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threads,
        "actors": len(actors("ClientActor")),
    }


def test_runs_in_a_row_leave_nothing_open(own_actors: None, tmp_path: Path) -> None:
    import ray

    def run() -> None:
        simulate(load_config(None, [*SMALL, "rounds=2", f"output.dir={tmp_path}", "ray.actors=1"]), Screen(quiet=True))

    run()  # libraries open theirs with the first
    before, shared = held(), set(Path("/dev/shm").iterdir())
    for _ in range(4):
        run()
    wait_until(lambda: not actors("ClientActor") and not actors("ServerActor"), "the end of the actors", 30)
    after = held()
    assert after["files"] <= before["files"] + 3
    assert after["threads"] <= before["threads"] + 3
    assert len(set(Path("/dev/shm").iterdir()) - shared) <= 1
    total, free = ray.cluster_resources(), ray.available_resources()
    assert total["object_store_memory"] - free["object_store_memory"] < 2**20
