"""What the server asks a worker to do, as data. An order contains no models, only their places in shared stacks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rayfl.client.objective import Term
from rayfl.client.passes import Combine, Split
from rayfl.models import Part


@dataclass(frozen=True)
class HandedRows:
    """Models given to the clients of an order: which of the shared stacks, and which row for each client."""

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
    part: Part = "all"  # the part of the network that is trained
    momentum: str | None = None  # the slot in which clients keep their momentum; None: it starts at zero
    start: HandedRows | None = None
    terms: list[tuple[Term, HandedRows | str]] = field(default_factory=list)  # terms, and where their models are
    partner: HandedRows | str | None = None


@dataclass(frozen=True)
class MapOrder:
    """See Federation.map. A client gets the whole of each shared array, or only its row of it if `rows` names one."""

    round: int
    clients: np.ndarray
    stream: int
    function: Callable[..., Any]
    rows: list[np.ndarray | None]
    together: bool = False

    @property
    def name(self) -> str:
        """The name of the function."""
        function = self.function.func if isinstance(self.function, partial) else self.function
        return getattr(function, "__qualname__", type(function).__name__)


#: Where a worker finds a model to test: a row of the stack (-1: the initial model), a client's slot, or both: then a
#: part of the model in the slot (None: of the initial model) is replaced by the same part of the model in the row.
Source = int | str | tuple[int, str | None]

#: A source for each model of a mixture, and the clients that are tested with them.
Task = tuple[tuple[Source, ...], np.ndarray]


@dataclass(frozen=True)
class EvaluateOrder:
    """See Federation.evaluate. For each model of the mixture, `laid` names the part that is taken from the stack."""

    tasks: list[Task]
    combine: Combine
    laid: tuple[Part, ...]
    split: Split = "test"
    round: int = 0  # how clients see their samples may change with the round
