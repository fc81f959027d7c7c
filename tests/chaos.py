"""Faults at random moments, drawn by a seed: what `make chaos` does.

    python tests/chaos.py [--faults 200] [--per-run 5] [--seed 0] [--first 1]

Each run is a driver in a process of its own with two client actors on a cluster of two nodes, and meets several faults,
some of them while it starts. Where a fault ends the driver, the run is resumed. In the end its tables must equal, to
the last bit, those of an undisturbed run.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from faults import PATIENCE, Driver, Nodes, kill, nodes, rounds_in, wait_until
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.results import Run
from rayfl.simulation.screen import Screen

#: Methods that keep nothing of their clients, their models, two models, many phases, another server's state.
METHODS = {
    "fedavg": ["method.name=fedavg"],
    "ifca": ["method.name=ifca", "method.clusters=3"],
    "fedac": ["method.name=fedac", "method.tune_from=2", "method.tune_every=3"],
    "sr_fca": ["method.name=sr_fca", "method.one_shot_rounds=4", "method.refine_rounds=3"],
    "fesem + cam": ["method.name=fesem", "method.clusters=3", "method.addons=[cam]", "method.cam.warmup=2"],
    "ditto": ["method.name=ditto"],
    "fedtsdp": ["method.name=fedtsdp"],
}
WORK = ["rounds=14", "local.steps=30", "local.lr=0.02", "participation.fraction=0.6"]
LOST_AFTER = 10  # seconds; less is taken for a loss on a machine that is busy with other tests


@dataclass
class Scene:
    """A run under attack."""

    driver: Driver
    cluster: Nodes
    random: Random
    deeds: list[str] = field(default_factory=list)
    given_up: int = 0  # unrequested ends, each with a message that says how to resume

    def ended(self) -> bool:
        """Whether the driver is no longer there."""
        return self.driver.process.poll() is not None

    def go_on_if_it_gave_up(self) -> bool:
        """Resume a driver that has ended by itself with the message that it can be resumed; False if it is still on."""
        if not self.ended() or self.driver.process.returncode == 0:
            return False
        log = self.driver.log.read_text()
        if "rayfl resume" not in log.splitlines()[-1]:
            raise AssertionError(f"exit code {self.driver.process.returncode}:\n{log}")
        self.given_up += 1
        if self.given_up > 3:
            raise AssertionError(f"it gave up {self.given_up} times:\n{log}")
        self.driver.go_on()
        return True

    def one_of(self, kind: str) -> int | None:
        """Return the process id of any actor of a kind."""
        pids = self.cluster.actors(kind)
        return self.random.choice(pids) if pids else None


def signalled(kind: str, number: int = signal.SIGKILL) -> Callable[[Scene], bool]:
    def deed(scene: Scene) -> bool:
        pid = scene.one_of(kind)
        if pid is not None:
            kill(pid, number)
        return pid is not None

    return deed


def all_clients(scene: Scene) -> bool:
    pids = scene.cluster.actors("ClientActor")
    for pid in pids:
        kill(pid)
    return bool(pids)


def server_twice(scene: Scene) -> bool:
    if (first := scene.one_of("ServerActor")) is None:
        return False
    kill(first)
    end = time.monotonic() + 20
    while time.monotonic() < end and not scene.ended():
        others = [pid for pid in scene.cluster.actors("ServerActor") if pid != first]
        if others:
            time.sleep(scene.random.uniform(0, 1))
            kill(others[0])
            return True
        time.sleep(0.02)
    return False


def node(scene: Scene) -> bool:
    scene.cluster.kill_one(scene.random)
    scene.cluster.others.append(scene.cluster.add())  # a new one for the next fault
    return True


def driver_killed(scene: Scene) -> bool:
    scene.driver.kill_and_resume()
    return True


def driver_while_it_writes(scene: Scene) -> bool:
    # A file that is being written lies beside its place under a name with a dot.
    end = time.monotonic() + 5
    while time.monotonic() < end and not scene.ended():
        if any(p.name != ".lock" for p in [*scene.driver.path.glob(".*"), *scene.driver.path.glob("*/.*")]):
            break
    return driver_killed(scene)


def driver_once_its_folder_is_there(scene: Scene) -> bool:
    while not scene.driver.path.exists() and not scene.ended():
        pass
    return driver_killed(scene)


def asked_to_stop(number: int, times: int = 1) -> Callable[[Scene], bool]:
    """Send a signal; the driver must end with its exit code, or have just finished."""

    def deed(scene: Scene) -> bool:
        process = scene.driver.process
        for _ in range(times):
            process.send_signal(number)
            time.sleep(scene.random.uniform(0, 0.3))
        code = process.wait(PATIENCE)
        if code not in (128 + number, 0):
            raise AssertionError(f"exit code {code} after signal {number}:\n{scene.driver.log.read_text()}")
        if code:
            scene.driver.go_on()
        return bool(code)

    return deed


#: In the middle of a run.
FAULTS: dict[str, Callable[[Scene], bool]] = {
    "client actor killed": signalled("ClientActor"),
    "all client actors killed": all_clients,
    "client actor stopped": signalled("ClientActor", signal.SIGSTOP),
    "server actor killed": signalled("ServerActor"),
    "server actor killed twice": server_twice,
    "server actor stopped": signalled("ServerActor", signal.SIGSTOP),
    "node killed": node,
    "driver killed": driver_killed,
    "driver killed while it writes": driver_while_it_writes,
    "Ctrl-C": asked_to_stop(signal.SIGINT),
    "three Ctrl-C": asked_to_stop(signal.SIGINT, 3),
    "SIGTERM": asked_to_stop(signal.SIGTERM),
}
#: While it starts, each once there is something to harm.
AT_START: dict[str, tuple[Callable[[Scene], bool], Callable[[Scene], bool]]] = {
    "client actor killed while starting": (
        lambda scene: bool(scene.cluster.actors("ClientActor")),
        signalled("ClientActor"),
    ),
    "server actor killed while starting": (
        lambda scene: bool(scene.cluster.actors("ServerActor")),
        signalled("ServerActor"),
    ),
    "node killed while starting": (lambda scene: bool(scene.cluster.actors("ClientActor")), node),
    "driver killed while starting": (lambda scene: bool(scene.cluster.actors("ClientActor")), driver_killed),
    "driver killed once its folder is there": (lambda scene: True, driver_once_its_folder_is_there),
    "SIGTERM while starting": (lambda scene: bool(scene.cluster.actors("ClientActor")), asked_to_stop(signal.SIGTERM)),
    "Ctrl-C while starting": (lambda scene: bool(scene.cluster.actors("ClientActor")), asked_to_stop(signal.SIGINT)),
}


def undisturbed(method: str, folder: Path) -> Run:
    """Return the run that the others are compared with: in this process, no Ray."""
    name = f"undisturbed-{method.replace(' ', '')}"
    words = [*WORK, *METHODS[method], "federation=serial", f"output.dir={folder}", f"name={name}"]
    return simulate(load_config(None, words), Screen(quiet=True))


def disturbed(method: str, cluster: Nodes, folder: Path, faults: int, random: Random) -> tuple[Run, Scene]:
    """Run a method through this number of faults; after the first round, at least one round lies between two faults."""
    every = random.choice(["1", "3", "null"])
    words = [*WORK, *METHODS[method], f"ray.address={cluster.address}", f"output.checkpoint_every={every}"]
    wait_until(lambda: not cluster.actors("ClientActor"), "the end of the last run's client actors", 60)
    wait_until(lambda: not cluster.actors("ServerActor"), "the end of the last run's server actor", 60)
    driver = Driver(folder, [*words, "ray.actors=2", f"ray.lost_after={LOST_AFTER}"])
    scene = Scene(driver, cluster, random)
    if random.random() < 0.6:
        kind = random.choice(list(AT_START))
        ready, deed = AT_START[kind]
        wait_until(lambda: ready(scene) or scene.ended(), kind)
        time.sleep(random.uniform(0, 1.5))
        if not scene.ended() and deed(scene):
            scene.deeds.append(kind)
    while len(scene.deeds) < faults:
        if not driver.wait_for_rounds(rounds_in(driver.path) + 1):
            if scene.go_on_if_it_gave_up():
                continue
            break
        time.sleep(random.uniform(0, 1.5))
        kind = random.choice(list(FAULTS))
        if not scene.ended() and FAULTS[kind](scene):
            scene.deeds.append(kind)
    driver.process.wait(PATIENCE)
    while scene.go_on_if_it_gave_up():
        driver.process.wait(PATIENCE)
    return driver.finish(), scene


def main() -> None:
    """Count the faults that left no trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="in all, at least")
    parser.add_argument("--per-run", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="number of the first run, to go on where another stopped")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    runs, given_up = arguments.first - 1, 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, nodes(2, num_cpus=2) as cluster:
        folder = Path(name)
        references = {method: undisturbed(method, folder) for method in METHODS}
        while counts.total() < arguments.faults and len(failures) < 10:
            method = list(METHODS)[runs % len(METHODS)]
            random, start = Random(arguments.seed * 1000 + runs), time.monotonic()
            runs += 1
            try:
                run, scene = disturbed(method, cluster, folder / str(runs), arguments.per_run, random)
                assert_same(references[method], run)
            except (AssertionError, TimeoutError) as error:
                failures.append(f"run {runs}, {method}: {error}")
                print(f"FAILED {failures[-1]}", flush=True)
                for pid in [*cluster.actors("ClientActor"), *cluster.actors("ServerActor")]:
                    kill(pid)
                continue
            counts.update(scene.deeds)
            given_up += scene.given_up
            seconds = time.monotonic() - start
            print(f"run {runs}, {method}: {', '.join(scene.deeds)}: the same tables, {seconds:.0f} s", flush=True)
            for note in recoveries(run):
                print(f"    {note}", flush=True)
    for kind in [*AT_START, *FAULTS]:
        print(f"{counts[kind]:5} {kind}")
    minutes = (time.monotonic() - begin) / 60
    survived = runs - arguments.first + 1 - len(failures)
    print(f"{counts.total()} faults in {survived} runs of {len(METHODS)} methods, {minutes:.0f} min")
    print(f"{given_up} times a run gave up with a message and was resumed")
    if failures:
        sys.exit(f"{len(failures)} runs failed")
    print("every table equals the undisturbed one")


if __name__ == "__main__":
    main()
