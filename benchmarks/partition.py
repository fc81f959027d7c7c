"""Composed partitions: the time and memory that one with all parts takes, and what transforms cost in a round.

    python benchmarks/partition.py [--quick]

The partition: 1.2 million samples for 100,000 clients, with skewed labels and sizes, planted rotations and label swaps,
noise per client, and drift. The table shows CPU seconds, and memory beyond the data. The round: training and testing of
clients whose samples are rotated, noisy and blurred, against the same work for clients with unchanged samples. The
table shows ratios of CPU seconds.
"""

import resource
import time
from dataclasses import replace

import numpy as np
import torch
from measuring import Report, Row, compared, is_quick, seconds, spread
from threadpoolctl import threadpool_limits

from rayfl.client.orders import EvaluateOrder, TrainOrder
from rayfl.client.worker import Worker
from rayfl.config import load_config, partition_config
from rayfl.data import Dataset, Partition, make_partition

PARTS = {
    "kind": "composed",
    "labels": {"kind": "dirichlet", "alpha": 0.5},
    "quantity": {"kind": "lognormal", "sigma": 0.5},
    "features": [
        {"kind": "rotation", "angle": [0, 15, 90, 105]},
        {"kind": "noise", "std": [0, 20], "by": "client"},
        {"kind": "blur", "sigma": 0.8, "share": 0.2},
    ],
    "concept": [{"kind": "swap", "random": 2}],
    "drift": [{"round": 50, "until": 80, "share": 0.5}],
}


def main() -> None:
    quick = is_quick(__doc__)
    report = Report("partition", quick)
    clients, samples = (2_000, 24_000) if quick else (100_000, 1_200_000)
    report.add(made(clients, samples))
    torch.set_num_threads(1)  # as in actors
    with threadpool_limits(1):
        report.add(*(rounds(300, 2) if quick else rounds(3_000, 5)))
    report.show(
        "composed partitions",
        {
            "what": lambda row: row.what,
            "figure": lambda row: row.figure,
            "CPU": lambda row: seconds(row.seconds),
            "without": lambda row: seconds(row.reference_seconds),
            "ratio": spread,
            "MB": lambda row: "-" if row.megabytes is None else f"{row.megabytes:,.0f}",
        },
    )


def made_up(samples: int, side: int) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(
        inputs=rng.integers(0, 256, (samples, 1, side, side), dtype=np.uint8),
        labels=rng.integers(0, 10, samples).astype(np.uint8),
        classes=10,
        kind="image",
        is_test=np.zeros(samples, bool),
        shift=np.full(1, -1.7, np.float32),
        scale=np.full(1, 1 / 74, np.float32),
    )


def made(clients: int, samples: int) -> Row:
    """Measure a partition with all parts."""
    dataset = made_up(samples, 8)
    before, begin = _most_megabytes(), time.process_time()
    partition = make_partition(partition_config(clients=clients, **PARTS), dataset, 0)
    took = time.process_time() - begin
    note = f"{len(partition.transforms)} transforms, {len(partition.changes)} rounds of drift"
    megabytes = _most_megabytes() - before
    return Row(
        f"{clients:,} clients, {samples:,} samples", "composed", "partition", took, megabytes=megabytes, note=note
    )


def rounds(samples: int, repetitions: int) -> list[Row]:
    """Measure rounds of clients with transforms against rounds without.

    The first round has a row of its own, because it prepares the inputs.
    """
    dataset = made_up(samples, 28)
    partition = make_partition(partition_config(clients=20, **PARTS), dataset, 0)
    plain = replace(partition, transforms=(), transform_of=None, changes=())
    overrides = ["federation=serial", "model.name=fedac_cnn", "local.epochs=1", "local.batch_size=32", "training=loop"]
    config = load_config(None, overrides)
    workers = {"transforms": Worker(config, dataset, partition), "none": Worker(config, dataset, plain)}
    times: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(1, repetitions + 2):
        for name in list(workers) if number % 2 else reversed(list(workers)):
            times[name].append(_round(workers[name], partition, number))
    what = f"{partition.clients} clients, 28 x 28, {config.model.name}"
    first, rest = ({name: each[cut] for name, each in times.items()} for cut in (slice(0, 1), slice(1, None)))
    return [
        compared(what, "transforms", figure, found["transforms"], "none", found["none"])
        for figure, found in (("first round", first), ("later rounds", rest))
    ]


def _round(worker: Worker, partition: Partition, number: int) -> float:
    everyone = np.arange(partition.clients)
    begin = time.process_time()
    worker.train([], TrainOrder(number, everyone))
    worker.evaluate(
        [None],
        EvaluateOrder([(("model",), everyone[at : at + 1]) for at in everyone], "logits", ("all",), round=number),
    )
    return time.process_time() - begin


def _most_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
