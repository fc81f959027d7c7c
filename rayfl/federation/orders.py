"""What the server asks of a worker, as data that travels: models by their place in what was shared, not themselves."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rayfl.models import Part
from rayfl.training.passes import Combine, Split


@dataclass(frozen=True)
class Given:
    """Models handed to the clients of an order: which of the shared stacks, and which row for each client."""

    stack: int
    rows: np.ndarray
    part: Part = "all"


@dataclass(frozen=True)
class TrainOrder:
    """See Federation.train."""

    round: int
    clients: np.ndarray
    slot: str = "model"
    stream: int = 0
    keep: bool = False
    momentum: str | None = None  # the slot of the momentum that clients keep; None: they begin from rest
    start: Given | None = None
    pulls: list[tuple[Given, float, bool]] = field(default_factory=list)  # strength, and whether it is per step
    partner: Given | str | None = None
    contrasts: list[tuple[Given, Literal["parameters", "representations"], float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluateOrder:
    """Each task: for each part of the mixture a row of its stack (-1: the initial model) or a slot, and the clients."""

    tasks: list[tuple[tuple[int | str, ...], np.ndarray]]
    combine: Combine
    split: Split = "test"
