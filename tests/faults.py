"""Real faults for tests: processes found and killed, clusters of several nodes on this machine, drivers to be killed.

    python tests/faults.py [--runs 9] [--faults 3] [--seed 0]        # what `make chaos` does

Each run is a driver in a process of its own on a cluster of three nodes, and meets several faults at random moments,
drawn by the seed: kill -9 of a client actor, the server actor, a whole node, or the driver, which is then resumed. In
the end its tables are compared, to the last bit, with those of an undisturbed run.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.results import Run, load
from rayfl.screen import Screen
from rayfl.simulation import simulate

PATIENCE = 240.0
#: Ray notices the death of a node within a second or two, not a quarter of a minute.
QUICK_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 5,
}


# -- processes ---------------------------------------------------------------------------------------------------


def children(root: int | None = None) -> dict[int, str]:
    """Return the process ids and titles of all that descend from a process, by default this one."""
    parents, titles = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has just ended
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)], titles[int(folder.name)] = int(parent), title
    found: set[int] = {os.getpid() if root is None else root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return {pid: titles[pid] for pid in found if pid in titles}
        found |= more


def actors(kind: str, root: int | None = None) -> list[int]:
    """Return the process ids of actors of a class (ClientActor, ServerActor) under a process."""
    return sorted(pid for pid, title in children(root).items() if title.startswith(f"ray::{kind}"))


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """Wait, with an end."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)


# -- drivers and clusters ----------------------------------------------------------------------------------------


def rounds_in(path: Path) -> int:
    """Return how many rounds of a run can be read; 0 before it has begun."""
    try:
        return len(load(path).rounds)
    except InputError:
        return 0


@dataclass
class Driver:
    """A `rayfl run` in a process of its own, which can be killed and resumed."""

    folder: Path
    words: list[str]
    log: Path = field(init=False)
    process: subprocess.Popen = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log"
        self.start("run", f"output.dir={self.folder}", "name=a", *self.words)

    def start(self, *words: str) -> None:
        """Start a command of rayfl."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rayfl.cli", *words],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Whatever Ray the tests' own environment names, a driver has the one that its words name.
                env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
            )

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder / "a"

    def wait_for_rounds(self, count: int) -> bool:
        """Wait until so many rounds are there; False if the run has ended before."""
        wait_until(lambda: rounds_in(self.path) >= count or self.process.poll() is not None, f"round {count}")
        return self.process.poll() is None

    def kill_and_resume(self) -> None:
        """Kill -9 the driver, and go on with its run."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.start("resume", str(self.path))

    def finish(self) -> Run:
        """Wait for the end, which must be a good one."""
        code = self.process.wait(PATIENCE)
        if code:
            raise AssertionError(f"exit code {code}:\n{self.log.read_text()}")
        return load(self.path)


class Nodes:
    """A Ray cluster of several nodes on this machine."""

    def __init__(self, count: int, **resources: Any) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_worker_niceness", "0")
        self.resources = resources
        arguments = {"include_dashboard": False, "_system_config": QUICK_HEALTH_CHECKS, **resources}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=arguments)
        self.others = [self.add() for _ in range(count - 1)]

    @property
    def address(self) -> str:
        """Where drivers find it."""
        return self.cluster.address

    def add(self) -> Any:
        """Let a node join."""
        return self.cluster.add_node(wait=False, **self.resources)

    def kill_one(self, random: Random) -> None:
        """Kill -9 everything of a node that is not the head."""
        node = self.others.pop(random.randrange(len(self.others)))
        raylet = node.all_processes["raylet"][0].process.pid
        pids = list(children(raylet))
        for pid in [raylet, *pids]:
            kill(pid)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Take it down."""
        self.cluster.shutdown()


@contextmanager
def nodes(count: int, **resources: Any) -> Iterator[Nodes]:
    """A cluster while inside."""
    cluster = Nodes(count, **resources)
    try:
        yield cluster
    finally:
        cluster.close()


# -- chaos -------------------------------------------------------------------------------------------------------

#: One that keeps nothing of its clients, one that keeps their models, one with many phases.
METHODS = {
    "fedavg": ["method.name=fedavg"],
    "fedac": ["method.name=fedac", "method.tune_from=2", "method.tune_every=3"],
    "sr_fca": ["method.name=sr_fca", "method.one_shot_rounds=4", "method.refine_rounds=3"],
}
WORK = ["rounds=14", "local.steps=30", "local.lr=0.02", "participation.fraction=0.6"]
KINDS = ("client", "client", "server", "node", "driver", "driver while it writes")


@dataclass
class Deed:
    """A fault that was done: after which round, and what."""

    after: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} after round {self.after}"


def undisturbed(method: str, folder: Path) -> Run:
    """Return the run that the others are compared with: in this process, no Ray."""
    words = [*WORK, *METHODS[method], "federation=serial", f"output.dir={folder}", f"name=undisturbed-{method}"]
    return simulate(load_config(None, words), Screen(quiet=True))


def disturbed(method: str, cluster: Nodes, folder: Path, faults: int, random: Random) -> tuple[Run, list[Deed]]:
    """Run a method through so many faults, each after at least one more round has been written."""
    every = random.choice(["1", "3", "null"])
    words = [*WORK, *METHODS[method], f"ray.address={cluster.address}", f"output.checkpoint_every={every}"]
    driver = Driver(folder, [*words, "ray.actors=3", "ray.lost_after=20"])
    deeds: list[Deed] = []
    while len(deeds) < faults and driver.wait_for_rounds(rounds_in(driver.path) + 1):
        time.sleep(random.uniform(0, 1.5))
        kind = random.choice(KINDS)
        if do(kind, driver, cluster, random):
            deeds.append(Deed(rounds_in(driver.path), kind))
    return driver.finish(), deeds


def do(kind: str, driver: Driver, cluster: Nodes, random: Random) -> bool:
    """Do one fault; say whether there was anything left to harm."""
    if driver.process.poll() is not None:
        return False
    if kind in ("client", "server"):
        pids = actors("ClientActor" if kind == "client" else "ServerActor")
        if pids:
            kill(random.choice(pids))
        return bool(pids)
    if kind == "node":
        cluster.kill_one(random)
        cluster.others.append(cluster.add())  # a new one for the next fault
        return True
    if kind == "driver while it writes":
        # A file that is being written lies beside its place under a name with a dot.
        end = time.monotonic() + 5
        while time.monotonic() < end and driver.process.poll() is None:
            if any(driver.path.glob("*/.*")):
                break
    if driver.process.poll() is None:
        driver.kill_and_resume()
        return True
    return False


def main() -> None:
    """Count the faults that left no trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--faults", type=int, default=3, help="per run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total = 0
    with tempfile.TemporaryDirectory() as name, nodes(3, num_cpus=2) as cluster:
        folder = Path(name)
        references = {method: undisturbed(method, folder) for method in METHODS}
        for number in range(arguments.runs):
            method = list(METHODS)[number % len(METHODS)]
            random = Random(arguments.seed * 1000 + number)
            begin = time.monotonic()
            run, deeds = disturbed(method, cluster, folder / str(number), arguments.faults, random)
            assert_same(references[method], run)
            total += len(deeds)
            seconds = time.monotonic() - begin
            print(f"{method}: {', '.join(map(str, deeds))}: the same tables, {seconds:.0f} s", flush=True)
            for note in recoveries(run):
                print(f"    {note}", flush=True)
    print(f"{total} faults in {arguments.runs} runs, and every table equals the undisturbed one")


if __name__ == "__main__":
    main()
