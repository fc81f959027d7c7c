"""How rounds, start-up and memory grow from 1,000 to 100,000 clients, with a cohort of 100.

    python benchmarks/scale.py [--quick]

The run of each size has its own driver process and its own Ray. When all have started, they take turns, one round at a
time. FedAvg keeps nothing of its clients. FedAC keeps the models of all clients that have trained, which soon exceed
the memory budget of an actor. Rounds have no evaluation, because its time must grow with the clients; all clients are
tested once, at the end. Memory is PSS, where a page that several processes share counts in part for each. It also grows
with the samples, so the table shows the size of the data beside it.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Report, Row, compared, console, is_quick, pss, seconds, spread, take_turns
from work import PROCESSES, Work, configured

from rayfl.launch import open_server
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

COHORT, SAMPLES = 100, 10  # clients per round; samples per client, of which 8 are for training
METHODS: dict[str, dict[str, Any]] = {"fedavg": {"name": "fedavg"}, "fedac": {"name": "fedac"}}
EVERY = 100_000  # the round in which everybody is tested
BUDGET = 4  # MB of kept models in an actor's memory


@dataclass(frozen=True)
class Started:
    """What comes before the first round: seconds to load and split the data, seconds to open the server, MB of data."""

    prepare: float
    open: float
    data: float


def main() -> None:
    quick = is_quick(__doc__)
    report = Report("scale", quick)
    sizes = [1_000, 10_000] if quick else [1_000, 10_000, 100_000]
    with tempfile.TemporaryDirectory() as name:
        for method in METHODS:
            report.add(*measured(method, sizes, Path(name), 5 if quick else 15))
    show(report)


def measured(method: str, sizes: list[int], folder: Path, repetitions: int) -> list[Row]:
    """Run one method at all sizes, the runs taking turns."""
    runs: dict[int, Connection] = {}
    started: dict[int, Started] = {}
    context = get_context("spawn")
    processes = []
    for size in sizes:
        here, there = context.Pipe()
        processes.append(context.Process(target=drive, args=(method, size, folder, there)))
        processes[-1].start()
        there.close()  # the pipe then closes if the process dies
        runs[size], started[size] = here, here.recv()
        console().print(f"{method}, {size:,} clients: started")

    def ask(size: int, what: str) -> Any:
        runs[size].send(what)
        return runs[size].recv()

    turns = take_turns({str(size): partial(ask, size, "round") for size in sizes}, repetitions, warm_up=3)
    rounds = {size: [t for t, _ in turns[str(size)]] for size in sizes}
    memory = {size: ask(size, "memory") for size in sizes}
    kept = {size: ask(size, "kept") for size in sizes}
    tested = {size: ask(size, "test") for size in sizes}
    for run, process in zip(runs.values(), processes, strict=True):
        run.send(None)
        process.join()

    rows, least = [], sizes[0]
    for size in sizes:
        what, reference = f"{size:,} clients", f"{least:,} clients"
        rows.append(compared(what, method, "round", rounds[size], reference, rounds[least]))
        for figure, values in {
            "prepare": {s: started[s].prepare for s in sizes},
            "open": {s: started[s].open for s in sizes},
            "test everybody": tested,
        }.items():
            rows.append(compared(what, method, figure, [values[size]], reference, [values[least]]))
        rows.append(Row(what, method, "data", megabytes=started[size].data))
        rows.append(Row(what, method, "kept", megabytes=kept[size], note=f"budget {BUDGET} MB"))
        for process_name, megabytes in memory[size].items():
            before = memory[least][process_name]
            rows.append(
                Row(what, method, process_name, megabytes=megabytes, reference=reference, ratio=megabytes / before)
            )
            rows.append(Row(what, method, f"{process_name}, growth", megabytes=megabytes - before, reference=reference))
    return rows


def show(report: Report) -> None:
    by_figure = {(row.what, row.variant, row.figure): row for row in report.rows}

    def part(row: Row, figure: str) -> str:
        return seconds(by_figure[row.what, row.variant, figure].seconds)

    def megabytes(row: Row, figure: str) -> str:
        growth = by_figure[row.what, row.variant, f"{figure}, growth"].megabytes
        return f"{by_figure[row.what, row.variant, figure].megabytes:,.0f} ({growth:+,.0f})"

    report.show(
        f"cohort of {COHORT}; memory as PSS in MB, in brackets its growth; data: samples and who has which, in MB;"
        f" kept: models per actor, in MB, of which {BUDGET} may be in its memory",
        {
            "clients": lambda row: row.what,
            "method": lambda row: row.variant,
            "round": lambda row: part(row, "round"),
            "growth": spread,
            "prepare": lambda row: part(row, "prepare"),
            "open": lambda row: part(row, "open"),
            "test everybody": lambda row: part(row, "test everybody"),
            "data": lambda row: f"{by_figure[row.what, row.variant, 'data'].megabytes:,.0f}",
            "driver": lambda row: megabytes(row, "driver"),
            "server": lambda row: megabytes(row, "server"),
            "actor": lambda row: megabytes(row, "actor"),
            "kept": lambda row: f"{by_figure[row.what, row.variant, 'kept'].megabytes:,.0f}",
        },
        [row for row in report.rows if row.figure == "round"],
    )


# -- in the process of one run -----------------------------------------------------------------------------------


def drive(method: str, clients: int, folder: Path, pipe: Connection) -> None:
    """Do what `rayfl run` does, but one round at a time, on request through the pipe."""
    begin = time.perf_counter()
    work = Work("", "digits_cnn", "tiny", clients, COHORT, clients * SAMPLES)
    partition = {"kind": "dirichlet", "samples": [SAMPLES, SAMPLES]}
    more = {"evaluate": {"every": EVERY}, "state": {"memory_mb": BUDGET}}
    prepared = prepare(configured(work, METHODS[method], folder, partition, **more))
    ready = time.perf_counter()
    data = (prepared.dataset, prepared.partition)
    arrays = [a for thing in data for a in vars(thing).values() if isinstance(a, np.ndarray)]
    with open_server(prepared, Screen(quiet=True)) as server:
        opened = time.perf_counter()
        pipe.send(Started(ready - begin, opened - ready, sum(a.nbytes for a in arrays) / 1e6))
        number = 0
        while (asked := pipe.recv()) is not None:
            if asked == "round":
                number += 1
                server.run_round(number)
                pipe.send(None)
            elif asked == "memory":
                pipe.send(memory_of(server))
            elif asked == "kept":
                models = len(server.changed_since(0))
                pipe.send(models * prepared.facts.initial.nbytes / 1e6 / PROCESSES)
            else:
                pipe.send(server.run_round(EVERY).summary["seconds_eval"])


def memory_of(server: Any) -> dict[str, float]:
    """Return the PSS of this driver, of its server actor and of the largest of its client actors."""
    import ray  # only here: the parent process does not use Ray

    of_server = ray.get(server._server.actor.__ray_call__.remote(lambda _: os.getpid()))
    return {"driver": pss(os.getpid()), "server": pss(of_server), "actor": max(pss(s.pid) for s in server.seats)}


if __name__ == "__main__":
    main()
