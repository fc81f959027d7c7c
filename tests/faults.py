"""Real faults for tests: processes found and killed, several nodes on this machine, drivers that are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from forks import LEAN, Forked

from rayfl.errors import InputError
from rayfl.results import Run, load

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
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
    found: set[int] = {os.getpid() if root is None else root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    titles = {}
    for pid in found & parents.keys():
        with suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            titles[pid] = title.replace(b"\0", b" ").decode(errors="replace")
    return titles


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
    """Wait, with an end. A look that takes long is taken less often: those that are waited for need the CPU."""
    end = time.monotonic() + timeout
    while True:
        begin = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > end:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(max(0.02, 10 * (now - begin)))


# -- drivers and clusters ----------------------------------------------------------------------------------------


def rounds_in(path: Path) -> int:
    """Return how many rounds of a run can be read; 0 before it has started."""
    if not (path / "rounds").exists():
        return 0
    try:
        return len(load(path).rounds)
    except InputError:
        return 0


@dataclass
class Driver:
    """A `rayfl run` in a separate process, which can be killed and resumed.

    A `fresh` one is a Python that imports everything itself.
    """

    folder: Path
    words: list[str]
    fresh: bool = False
    log: Path = field(init=False)
    process: "Forked | subprocess.Popen" = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log"
        self.start("run", f"output.dir={self.folder}", "name=a", *self.words)

    def start(self, *words: str) -> None:
        """Start a command of rayfl."""
        with self.log.open("a") as log:
            # Whatever Ray the tests' own environment names, a driver has the one that its words name.
            environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
            command = ["-m", "rayfl.cli", *words]
            if self.fresh:
                self.process = subprocess.Popen(
                    [sys.executable, *command], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=environment
                )
            else:
                self.process = Forked(command, self.folder, environment, output=log)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder / "a"

    def wait_for_rounds(self, count: int) -> bool:
        """Wait until this number of rounds is written; False if the run ends before that."""
        wait_until(lambda: rounds_in(self.path) >= count or self.process.poll() is not None, f"round {count}")
        return self.process.poll() is None

    def go_on(self) -> None:
        """After its end, resume the run, or start it if it had not started."""
        self.process.wait(PATIENCE)
        if self.path.exists():
            self.start("resume", str(self.path))
        else:
            self.start("run", f"output.dir={self.folder}", "name=a", *self.words)

    def kill_and_resume(self) -> None:
        """Kill -9 the driver, and resume its run."""
        self.process.kill()
        self.go_on()

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
        self.resources = {**LEAN, **resources}
        arguments = {"include_dashboard": False, "_system_config": QUICK_HEALTH_CHECKS, **self.resources}
        self.cluster = Cluster(initialize_head=True, connect=False, head_node_args=arguments)
        self.others = [self.add() for _ in range(count - 1)]

    @property
    def address(self) -> str:
        """Where drivers find it."""
        return self.cluster.address

    def add(self) -> Any:
        """Let a node join."""
        return self.cluster.add_node(wait=False, **self.resources)

    def actors(self, kind: str) -> list[int]:
        """Return the process ids of actors of a class on these nodes; other Rays of this process may have idle ones."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in self.cluster.list_all_nodes()]
        return sorted(pid for raylet in raylets for pid in actors(kind, raylet))

    def kill_one(self, random: Random) -> None:
        """Kill -9 everything of some node that is not the head."""
        self.kill(self.others.pop(random.randrange(len(self.others))))

    def kill(self, node: Any) -> None:
        """Kill -9 everything of a node."""
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
