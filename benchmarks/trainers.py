"""The ways to train, for every network of the zoo at batch 10 and 32: what `training: auto` chooses, against the best.

    python benchmarks/trainers.py [--quick] [--only resnet ...]
    python benchmarks/trainers.py --only hidden channels    # around the sizes up to which auto trains together

All sides train the same clients for the same steps on one thread: the loop, the loop with channels last in memory, and
several clients at once. `auto / best` is the time of what auto chooses over that of the best, 1.00 if auto chooses the
best. Seconds are CPU time.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from measuring import Report, Row, command_line, compared, seconds, take_turns
from threadpoolctl import threadpool_limits

from rayfl.client.allocator import keep_freed_memory
from rayfl.client.choice import cpu_capability, faster_together
from rayfl.client.loop import train_alone
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import train_together
from rayfl.config import LocalConfig, ModelConfig
from rayfl.models import ZOO, FlatModel, build_model
from rayfl.models.zoo import wants_channels_last

CLASSES, VOCABULARY, WINDOW = 10, 80, 80
CLIENTS, STEPS = 32, 5  # clients: a multiple of every group's size
SLOW = 1_000_000  # networks with more parameters get fewer steps and turns
#: By title: a network, and the shape of its inputs; (WINDOW,) is that of text.
SHAPES = {
    "mlp 8 x 8": ("mlp", (1, 8, 8)),
    "mlp 28 x 28": ("mlp", (1, 28, 28)),
    "digits_cnn": ("digits_cnn", (1, 8, 8)),
    "thesis_fashion_mnist": ("thesis_fashion_mnist", (1, 28, 28)),
    "thesis_cifar10": ("thesis_cifar10", (3, 32, 32)),
    "thesis_pathmnist": ("thesis_pathmnist", (3, 28, 28)),
    "thesis_tissuemnist": ("thesis_tissuemnist", (1, 28, 28)),
    "fedac_cnn": ("fedac_cnn", (3, 32, 32)),
    "fedtsdp_cnn": ("fedtsdp_cnn", (1, 28, 28)),
    "resnet9": ("resnet9", (3, 32, 32)),
    "resnet18": ("resnet18", (3, 32, 32)),
    "char_lstm": ("char_lstm", (WINDOW,)),
}
#: Networks around the sizes up to which auto trains several clients at once, by their options.
WIDTHS: dict[str, tuple[str, tuple[int, ...], dict[str, int]]] = {
    **{f"mlp, hidden {n}": ("mlp", (1, 8, 8), {"hidden": n}) for n in (333, 666, 1000, 2000)},
    **{f"digits_cnn, channels {n}": ("digits_cnn", (1, 8, 8), {"channels": n}) for n in (48, 64, 96, 128)},
}
LOOP, LAST, TOGETHER = "loop", "loop, channels last", "vectorised"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="measure only networks with one of these in their name")
    arguments = parser.parse_args()
    quick = arguments.quick
    assert {name for name, _ in SHAPES.values()} == set(ZOO)
    report = Report("trainers", quick)
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do
    with threadpool_limits(1):
        for title in ["mlp 8 x 8", "digits_cnn"] if quick else (*SHAPES, *WIDTHS):
            for batch in (10, 32) if any(wanted in title for wanted in arguments.only) else ():
                report.add(*measured(title, batch, 2 if quick else 5))
    report.show(
        "one thread; the loop's time over each way's, and what auto costs more than the best",
        {
            "network": lambda row: row.what,
            "batch": lambda row: row.variant,
            "loop": lambda row: seconds(baseline.seconds) if (baseline := of(report, row, LOOP)) else "-",
            "channels last": lambda row: times(of(report, row, LAST)),
            "vectorised": lambda row: times(of(report, row, TOGETHER)),
            "auto": lambda row: row.note or "",
            "auto / best": lambda row: f"{row.ratio:.2f}",
        },
        [row for row in report.rows if row.figure == "auto / best"],
    )


def of(report: Report, row: Row, figure: str) -> Row | None:
    return next((r for r in report.rows if (r.what, r.variant, r.figure) == (row.what, row.variant, figure)), None)


def times(row: Row | None) -> str:
    return f"{1 / row.ratio:.2f} x" if row is not None and row.ratio else "-"


def measured(title: str, batch: int, repetitions: int) -> list[Row]:
    name, shape, options = WIDTHS[title] if title in WIDTHS else (*SHAPES[title], {})
    config = ModelConfig(name=name, options=options)
    plain, last = network(config, shape), network(config, shape, channels_last=True)
    slow = plain.layout.parameters > SLOW
    steps, repetitions = (1, 2) if slow else (STEPS, repetitions)
    local = LocalConfig.model_validate({"steps": steps, "batch_size": batch})
    clients = CLIENTS if plain.layout.parameters < 100_000 else 8  # one group of networks that are not dense
    sides: dict[str, Callable[[], float]] = {
        LOOP: partial(by_the_loop, plain, jobs(plain, shape, batch, clients, steps), local),
        LAST: partial(by_the_loop, last, jobs(last, shape, batch, clients, steps), local),
        TOGETHER: partial(together, plain, jobs(plain, shape, batch, clients, steps), local),
    }
    turns = {side: [cpu for _, cpu in answers] for side, answers in take_turns(sides, repetitions).items()}
    rows = [compared(title, str(batch), side, turns[side], LOOP, turns[LOOP]) for side in sides]
    in_the_loop = LAST if wants_channels_last(config, "loop") else LOOP
    taken = TOGETHER if faster_together(plain, batch, "cpu", cpu_capability()) else in_the_loop
    best = min(sides, key=lambda side: median(turns[side]))
    return [*rows, compared(title, str(batch), "auto / best", turns[taken], best, turns[best], taken)]


def network(config: ModelConfig, shape: tuple[int, ...], channels_last: bool = False) -> FlatModel:
    vocabulary = VOCABULARY if len(shape) == 1 else None
    classes = VOCABULARY if vocabulary else CLASSES
    return FlatModel(build_model(config, shape, classes, vocabulary, seed=0), channels_last=channels_last)


def jobs(model: FlatModel, shape: tuple[int, ...], batch: int, clients: int, steps: int) -> list[TrainingJob]:
    generator = torch.Generator().manual_seed(0)

    def some() -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, CLASSES, (batch,), generator=generator)
        if len(shape) == 1:
            return torch.randint(0, VOCABULARY, (batch, *shape), generator=generator), labels
        return torch.randn(batch, *shape, generator=generator), labels

    return [TrainingJob(model.vector.clone(), [some() for _ in range(steps)], seed=c) for c in range(clients)]


def by_the_loop(model: FlatModel, clients: list[TrainingJob], local: LocalConfig) -> float:
    begin = time.process_time()
    for client in clients:
        train_alone(model, client, local, 0.01)
    return time.process_time() - begin


def together(model: FlatModel, clients: list[TrainingJob], local: LocalConfig) -> float:
    begin = time.process_time()
    train_together(model, clients, local, 0.01)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
