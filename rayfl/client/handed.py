"""How a method says which models clients receive, start training from, stay close to, and are tested with."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfl.client.passes import Combine
from rayfl.models import Part

MODEL = "model"


@dataclass(frozen=True)
class Models:
    """Models given to clients: a stack of flat vectors, and which of them each client gets.

    `choice[i]` is the row for client i, -1 for none. Only `part` of the model is given (and travels). Set `travels` to
    False for models that the clients could create themselves, such as random ones: they cause no traffic.
    """

    stack: np.ndarray
    choice: np.ndarray
    part: Part = "all"
    travels: bool = True


@dataclass(frozen=True)
class Personal:
    """The client's own latest model; for methods with several models per client, `slot` says which."""

    slot: str = MODEL


@dataclass(frozen=True)
class Overlay:
    """The client's own model with one part (`models.part`) taken from a given model: personal and shared layers.

    A client without a model of its own uses the initial model instead. A client that is given no model (-1) uses its
    own model unchanged.
    """

    models: Models
    own: Personal = Personal()


@dataclass(frozen=True)
class Mixture:
    """Several models per client whose outputs are combined: logits are added, or probabilities averaged."""

    parts: tuple[Models | Personal | Overlay, ...]
    combine: Combine


EvalModels = Models | Personal | Overlay | Mixture


@dataclass(frozen=True)
class Each:
    """An array of which each client gets one row: client i gets row `rows[i]`, or None if that is negative."""

    array: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Sent:
    """Any value that clients need.

    `bytes` is its size, and `new` is the number of clients that receive it now; the others already have it.
    """

    value: Any
    bytes: int
    new: int


def everyone(model: np.ndarray, clients: int, part: Part = "all") -> Models:
    """Give the same model to every client."""
    return Models(model[None], np.zeros(clients, np.int32), part)
