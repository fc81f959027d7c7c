"""What the server asks of a worker, as data that travels: models by their place in what was shared, not themselves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfl.client.objective import Term
from rayfl.client.passes import Combine, Split
from rayfl.models import Part


@dataclass(frozen=True)
class HandedRows:
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
    part: Part = "all"  # what of the network is trained
    momentum: str | None = None  # the slot of the momentum that clients keep; None: they begin from rest
    start: HandedRows | None = None
    terms: list[tuple[Term, HandedRows | str]] = field(default_factory=list)  # without models, and where these are
    partner: HandedRows | str | None = None


@dataclass(frozen=True)
class MapOrder:
    """See Federation.map. Of each shared array, clients get all, or the rows that are named here for each of them."""

    round: int
    clients: np.ndarray
    stream: int
    function: Callable[..., Any]
    rows: list[np.ndarray | None]
    together: bool = False

    @property
    def name(self) -> str:
        """What the function is called."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)


#: Where a worker finds a model to test: a row of the stack (-1: the initial model), a client's slot, or both: a part of
#: the row is laid over what is in the slot (None: over the initial model).
Source = int | str | tuple[int, str | None]

#: A source for each model of a mixture, and the clients that are tested with them.
Task = tuple[tuple[Source, ...], np.ndarray]


@dataclass(frozen=True)
class EvaluateOrder:
    """See Federation.evaluate. `laid` names, for each model of the mixture, the part that is laid over another."""

    tasks: list[Task]
    combine: Combine
    laid: tuple[Part, ...]
    split: Split = "test"
