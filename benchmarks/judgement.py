"""What one judgement of FedAC on the number of clusters costs, from 100 to 10,000 clients that have all trained.

    python benchmarks/judgement.py [--quick]

In one process on one thread: the server chooses clients to ask, fits a map on their models, projects the last model of
every client, and asks for losses. The time is compared with the training of a cohort of 100 clients, 10 steps each.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import Report, Row, compared, console, is_quick, seconds, spread, take_turns
from threadpoolctl import threadpool_limits
from work import Work, configured

from rayfl.client.worker import Worker
from rayfl.federation.serial import SerialFederation
from rayfl.methods.fedac import FedAC
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

COHORT, SAMPLES = 100, 10
#: Number of turns, by the number of clients.
SIZES, QUICK = {100: 5, 1_000: 5, 10_000: 2}, {100: 1}
TRAINING, WHOLE = "training of 100 clients", "judgement"


def main() -> None:
    quick = is_quick(__doc__)
    report = Report("judgement", quick)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, threadpool_limits(1):
        for clients, repetitions in (QUICK if quick else SIZES).items():
            report.add(*measured(clients, Path(name), repetitions))
            console().print(f"{clients:,} clients: measured")
    show(report)


def measured(clients: int, folder: Path, repetitions: int) -> list[Row]:
    """Let everybody train twice, and repeat the parts of a judgement and a cohort's training in turn."""
    work = Work("", "digits_cnn", "tiny", clients, clients, clients * SAMPLES)
    method = {"name": "fedac", "tune_from": 1}
    config = configured(work, method, folder, {"kind": "iid"}, federation="serial", evaluate={"every": 100_000})
    prepared = prepare(config)
    fed = SerialFederation(prepared.facts, Worker(prepared.config, prepared.dataset, prepared.partition))
    try:
        server = Server(prepared.config, fed, None)
        for number in (1, 2):
            server.run_round(number)
        assert isinstance(server.method, FedAC)
        fed.begin_round(3)
        parts = Judgement(server.method)
        cohort = np.arange(min(COHORT, clients))
        sides: dict[str, Callable[[], object]] = {
            "choose whom to ask": parts.choose,
            "map and sketches": parts.sketch,
            "ask and decide": parts.ask,
            TRAINING: partial(train, fed, cohort),
        }
        turns = take_turns(sides, repetitions)
    finally:
        fed.close()
    times = {side: [t for t, _ in turns[side]] for side in sides}
    times[WHOLE] = [sum(found) for found in zip(*(times[side] for side in sides if side != TRAINING), strict=True)]
    what = f"{clients:,} clients"
    return [
        compared(what, f"{len(parts.judged)} asked", side, times[side], TRAINING, times[TRAINING]) for side in times
    ]


def train(fed: SerialFederation, cohort: np.ndarray) -> None:
    """Train a cohort, whose models the server then has."""
    fed.train(cohort)
    fed.mean(cohort)


class Judgement:
    """The parts of a judgement, one after the other."""

    def __init__(self, method: FedAC) -> None:
        self.method = method
        self.seen = np.arange(method.fed.clients)
        self.judged = self.choose()

    def choose(self) -> np.ndarray:
        """Draw a stratified sample of those who have trained often enough."""
        self.method.state.judging.next_at = 0
        found = self.method._judged_now()
        assert found is not None
        return found

    def sketch(self) -> None:
        """Fit the low-rank map on them, and project everybody's model by it."""
        self.method._sketch(self.seen[:0], self.seen, self.judged)

    def ask(self) -> None:
        """Ask them for their losses under the means of the groups of their tree, and prune it."""
        points = self.method.state.sketches - self.method._origin()
        self.method.find_clusters(self.judged, points[self.judged])


def show(report: Report) -> None:
    report.show(
        "one judgement on the number of clusters, one thread",
        {
            "clients": lambda row: row.what,
            "part": lambda row: row.figure,
            "asked": lambda row: row.variant,
            "time": lambda row: seconds(row.seconds),
            "of the training of a cohort of 100": spread,
        },
    )


if __name__ == "__main__":
    main()
