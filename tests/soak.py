"""A long run with a client actor killed every ten rounds: does anything grow, leak, or stay behind?

    python tests/soak.py [--rounds 300] [--every 10] [--runs 10]        # what `make soak` does

Before it, short runs in a row, each with a Ray of its own: what is open, held and shared after each.

Prints the slope of the driver's and the server's own memory over the second half of the rounds, and fails if it is more
than 1 MB per 100 rounds, if actors, files or objects are left, or if the tables differ from an undisturbed run's.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
import ray
from faults import actors, children, kill
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord

#: MB per 100 rounds. Ray itself, without rayfl, keeps 35 to 45 KB in either process for each actor that has died, so
#: ten kills are about half of it.
MOST_GROWTH = 1.0


def memory_mb(pid: int) -> float:
    """Return what a process has allocated; libraries, whose pages others share or not from round to round, aside."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1024


class Soaking(Screen):
    """Kills, and measures, between rounds."""

    def __init__(self, every: int) -> None:
        super().__init__(quiet=True)
        self.every, self.random = every, Random(0)
        self.driver: list[tuple[int, float]] = []
        self.server: list[tuple[int, float]] = []
        self.killed = 0

    def show_round(self, record: RoundRecord) -> None:
        self.driver.append((record.number, memory_mb(os.getpid())))
        for pid in actors("ServerActor")[:1]:
            self.server.append((record.number, memory_mb(pid)))
        if record.number % self.every == 0:
            kill(self.random.choice(actors("ClientActor")))
            self.killed += 1
        if record.number % 50 == 0:
            driver, server = self.driver[-1][1], self.server[-1][1]
            print(f"round {record.number}: driver {driver:.0f} MB, server {server:.0f} MB", flush=True)


def slope(points: list[tuple[int, float]]) -> float:
    """Return MB per 100 rounds over the second half."""
    half = points[len(points) // 2 :]
    return 100 * float(np.polyfit(*np.array(half).T, 1)[0])


def in_a_row(runs: int) -> list[str]:
    """Run again and again, each time with a new Ray; return what grew from the second run to the last."""
    held: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(1, runs + 1):
            words = ["rounds=3", "local.steps=2", f"output.dir={name}", "ray.actors=1"]
            simulate(load_config(None, words), Screen(quiet=True))
            gc.collect()
            held.append(
                {
                    "files": len(list(Path("/proc/self/fd").iterdir())),
                    "threads": len(list(Path("/proc/self/task").iterdir())),
                    "processes": len(children()) - 1,
                    "shared memory": len(list(Path("/dev/shm").iterdir())),
                    "MB": round(memory_mb(os.getpid())),
                }
            )
            print(f"run {number}: " + ", ".join(f"{value:g} {what}" for what, value in held[-1].items()), flush=True)
    allowed = {"files": 5, "threads": 5, "processes": 0, "shared memory": 1, "MB": 3 * runs}
    second, last = held[1], held[-1]
    return [
        f"{what} grew from {second[what]:g} to {last[what]:g}"
        for what, most in allowed.items()
        if last[what] > second[what] + most
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--runs", type=int, default=10, help="in a row, before the long one")
    arguments = parser.parse_args()
    faults = in_a_row(arguments.runs) if arguments.runs else []
    with tempfile.TemporaryDirectory() as name:
        words = [f"rounds={arguments.rounds}", "local.steps=5", f"output.dir={name}"]
        reference = simulate(load_config(None, [*words, "federation=serial", "name=reference"]), Screen(quiet=True))
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        screen, begin = Soaking(arguments.every), time.monotonic()
        run = simulate(load_config(None, [*words, "name=soaked", "ray.actors=2"]), screen)
        seconds = time.monotonic() - begin
        assert_same(reference, run)
        files = sorted(p.relative_to(run.path) for p in Path(run.path).rglob("*") if p.is_file())
        time.sleep(5)
        left = actors("ClientActor") + actors("ServerActor")
        total, free = ray.cluster_resources(), ray.available_resources()
        used = total["object_store_memory"] - free.get("object_store_memory", 0)
        cpus = total["CPU"] - free.get("CPU", 0)
        ray.shutdown()
    growth = {"driver": slope(screen.driver), "server": slope(screen.server)}
    recovered = len(recoveries(run))
    print(f"{arguments.rounds} rounds, {screen.killed} client actors killed, {recovered} recoveries, {seconds:.0f} s")
    print("MB per 100 rounds: " + ", ".join(f"{who} {value:+.2f}" for who, value in growth.items()))
    print(f"left: {len(left)} actors, {used / 1e6:.1f} MB of objects, {cpus:g} CPUs; {len(files)} files of the run")
    faults += [f"{who} grows by {v:.2f} MB per 100 rounds" for who, v in growth.items() if v > MOST_GROWTH]
    faults += ["actors are left"] * bool(left) + ["objects are left"] * (used > 1e6) + ["CPUs are taken"] * (cpus > 0)
    faults += [f"{f} is left" for f in files if f.name.startswith(".") and f.name != ".lock"]
    if faults:
        sys.exit("; ".join(faults))


if __name__ == "__main__":
    main()
