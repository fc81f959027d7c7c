"""A round of rayfl against the same round of the bare two-process loop, by network and method.

    python benchmarks/round.py [--quick] [--only "CIFAR CNN, fedac" ...]

Both sides start, then take turns, one round at a time, while the other side is idle. A round is all that a user waits
for: training, evaluation of all clients, the server's work, and writing rows to disk.

- training, evaluation: from the order until the last process has answered
- clients: everything else that a method asks of its clients (IFCA's losses, sketches, sums)
- server: the server's own arithmetic, as a share of rayfl's round
- communication: models into the object store, the call from the driver, rows to Parquet; the bare loop has none
- ch. last: the ratio to a bare loop with images channels last in memory, as they may be in rayfl; not everyone does so
- CPU: the ratio of the processes' CPU seconds, which can be compared on a busy machine too
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from bare_loop import BareLoop, Job, Timing, flat
from measuring import Report, Row, command_line, compared, console, cpu_seconds, seconds, spread, take_turns
from threadpoolctl import threadpool_limits
from work import BATCH, PROCESSES, STEPS, WORKS, Work, configured

from rayfl.launch import open_server
from rayfl.models import build_model
from rayfl.results import RunWriter, Storage
from rayfl.simulation.preparation import Prepared, prepare
from rayfl.simulation.screen import Screen

#: Each method does all parts of its work from the third round on: FedAC with both pulls, CAM without its warm-up.
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "watched:FedAvg"},
    "ifca": {"name": "watched:IFCA", "clusters": 10},
    "fedac": {"name": "watched:FedAC", "clusters": 4, "tune_from": 1},
    "fesem + cam": {"name": "watched:FeSEM", "clusters": 5, "addons": ["cam"], "cam": {"warmup": 0}},
}
PARTITION = {"kind": "dirichlet", "alpha": 0.5}  # clients of different sizes
WARM_UP = 2
BARE, CHANNELS_LAST = "bare loop", "bare loop, channels last"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="measure only these: (parts of) 'network, method'")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    report = Report("round", quick)
    ray.init("local", num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as name, threadpool_limits(1):
        for work in [smaller(WORKS[0])] if quick else WORKS:
            for method in METHODS:
                if not any(wanted in f"{work.title}, {method}" for wanted in arguments.only):
                    continue
                report.add(*measured(work, method, Path(name), 2 if quick else 5))
                show_last(report)
    ray.shutdown()
    show_all(report)


def smaller(work: Work) -> Work:
    return replace(work, clients=8, cohort=8, samples=960, steps=5)


def measured(work: Work, method: str, folder: Path, repetitions: int) -> list[Row]:
    """Measure one work and method, both sides in turn; for FedAvg, also a bare loop with channels last."""
    prepared = prepare(configured(work, METHODS[method], folder, PARTITION))
    job, models = job_of(prepared), initial_models(prepared, method)
    with ExitStack() as stack:
        sides: dict[str, Rayfl | BareLoop] = {BARE: stack.enter_context(closing(BareLoop(job, method, models)))}
        if method == "fedavg":
            faster = BareLoop(replace(job, channels_last=True), method, models)
            sides[CHANNELS_LAST] = stack.enter_context(closing(faster))
        # Open rayfl's server as a run does, on the Ray that this process has started.
        server = stack.enter_context(open_server(prepared, Screen(quiet=True)))
        sides["rayfl"] = Rayfl(server, folder)
        numbers = {name: count(1) for name in sides}
        runs = {name: partial(next_round, side, numbers[name]) for name, side in sides.items()}
        turns = take_turns(runs, repetitions, WARM_UP)
    whole = {side: [t for t, _ in turns[side]] for side in turns}
    accuracy = " / ".join(f"{turns[side][-1][1].accuracy:.4f}" for side in ("rayfl", BARE))
    rows = [compared(work.title, method, "round", whole["rayfl"], BARE, whole[BARE], f"accuracy {accuracy}")]
    if CHANNELS_LAST in turns:
        rows.append(compared(work.title, method, CHANNELS_LAST, whole["rayfl"], CHANNELS_LAST, whole[CHANNELS_LAST]))
    for figure in ("training", "evaluation", "clients", "server", "communication", "CPU"):
        parts = {side: [timing.seconds[figure] for _, timing in turns[side]] for side in turns}
        rows.append(compared(work.title, method, figure, parts["rayfl"], BARE, parts[BARE]))
    share = median(t.seconds["server"] / s for s, t in turns["rayfl"])
    rows.append(Row(work.title, method, "server / round", ratio=share, reference="rayfl", repetitions=repetitions))
    return rows


def next_round(side: "Rayfl | BareLoop", numbers: Iterator[int]) -> Timing:
    """Run a side's next round, and record the CPU seconds of its processes and of this process."""
    before, here = cpu_seconds(side.pids), time.process_time()
    timing = side.run_round(next(numbers))
    timing.seconds["CPU"] = cpu_seconds(side.pids) - before + time.process_time() - here
    return timing


class Rayfl:
    """rayfl's real engine, a round at a time, with its rows written to disk."""

    def __init__(self, server: Any, folder: Path) -> None:
        storage = Storage(str(folder / f"run-{time.time_ns()}"))
        storage.create()
        self._server, self._writer = server, RunWriter(storage, "benchmark", "method", 0)
        of_server = ray.get(server._server.actor.__ray_call__.remote(lambda _: os.getpid()))
        self.pids = [of_server, *(seat.pid for seat in server.seats)]

    def run_round(self, number: int) -> Timing:
        begin = time.perf_counter()
        record = self._server.run_round(number)
        self._writer.write_round(number, record.summary, record.clients, record.clusters, record.extras)
        whole = time.perf_counter() - begin
        asked = dict(record.extras["asked"])
        timing = Timing(accuracy=record.summary["accuracy"])
        timing.seconds |= {"training": asked.pop("train"), "evaluation": asked.pop("evaluate")}
        timing.seconds["clients"] = sum(asked.values())
        inside = record.summary["seconds_total"] - record.extras["shared"]
        timing.seconds["server"] = inside - sum(timing.seconds.values())
        timing.seconds["communication"] = whole - inside
        return timing


def job_of(prepared: Prepared) -> Job:
    """Return what rayfl has loaded as work for the bare loop: the same samples, clients and network."""
    config, dataset, partition = prepared.config, prepared.dataset, prepared.partition
    scale, shift = (torch.from_numpy(v)[:, None, None] for v in (dataset.scale, dataset.shift))
    return Job(
        module=build_model(config.model, dataset.input_shape, dataset.classes, seed=config.seed),
        head="head",
        inputs=torch.from_numpy(dataset.inputs).float().mul_(scale).add_(shift).share_memory_(),
        labels=torch.from_numpy(dataset.labels.astype(np.int64)).share_memory_(),
        classes=dataset.classes,
        train=partition.train,
        train_offsets=partition.train_offsets,
        test=partition.test,
        test_offsets=partition.test_offsets,
        cohort=config.cohort_size(partition.clients),
        steps=config.local.steps or STEPS,
        batch=BATCH,
        lr=config.local.lr,
        seed=config.seed,
    )


def initial_models(prepared: Prepared, method: str) -> torch.Tensor:
    """Return the initial models of the clusters: for IFCA they differ, for other methods they are all the same."""
    config, dataset = prepared.config, prepared.dataset
    indices = [k if method == "ifca" else 0 for k in range(METHODS[method].get("clusters", 1))]
    shape, classes = dataset.input_shape, dataset.classes
    return torch.stack([flat(build_model(config.model, shape, classes, seed=config.seed, index=k)) for k in indices])


def show_last(report: Report) -> None:
    row = next(r for r in reversed(report.rows) if r.figure == "round")
    console().print(f"{row.what}, {row.variant}: {spread(row)}, {row.note}")


def show_all(report: Report) -> None:
    by_figure = {(row.what, row.variant, row.figure): row for row in report.rows}

    def ratio(row: Row, figure: str, form: str = ".2f") -> str:
        found = by_figure.get((row.what, row.variant, figure))
        return "" if found is None or found.ratio is None else format(found.ratio, form)

    def both(row: Row, figure: str) -> str:
        found = by_figure[row.what, row.variant, figure]
        return f"{seconds(found.seconds)} / {seconds(found.reference_seconds)}"

    report.show(
        f"one round, rayfl / bare loop, {PROCESSES} processes, {STEPS} steps of {BATCH}, evaluation of all clients",
        {
            "network": lambda row: row.what,
            "method": lambda row: row.variant,
            "round": lambda row: both(row, "round"),
            "ratio": spread,
            "training": lambda row: ratio(row, "training"),
            "evaluation": lambda row: ratio(row, "evaluation"),
            "CPU": lambda row: ratio(row, "CPU"),
            "ch. last": lambda row: ratio(row, CHANNELS_LAST),
            "clients": lambda row: both(row, "clients"),
            "server": lambda row: ratio(row, "server / round", ".1%"),
            "communication": lambda row: seconds(by_figure[row.what, row.variant, "communication"].seconds),
        },
        [row for row in report.rows if row.figure == "round"],
    )


if __name__ == "__main__":
    main()
