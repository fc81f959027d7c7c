"""The models that clients are handed, trained from, held near to, and tested with, as a method says it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfl.client.passes import Combine
from rayfl.models import Part

MODEL = "model"


@dataclass(frozen=True)
class Models:
    """Models handed to clients: a stack of flat vectors, and which of them each client gets.

    `choice[i]` is the row for client i, -1 for none. `part` limits what is handed over (and what travels). Models that
    the clients could make themselves, such as random ones, do not travel: `travels` is false.
    """

    stack: np.ndarray
    choice: np.ndarray
    part: Part = "all"
    travels: bool = True


@dataclass(frozen=True)
class Personal:
    """The client's own latest model; the slot tells models of one client apart, where a method has several."""

    slot: str = MODEL


@dataclass(frozen=True)
class Overlay:
    """A part of the model handed to a client, `models.part`, laid over the client's own: shared and personal layers.

    Who has no model of its own gets the part over the initial one, who is handed none (-1) its own as it is.
    """

    models: Models
    own: Personal = Personal()


@dataclass(frozen=True)
class Mixture:
    """Several models per client whose outputs are put together: logits added, or probabilities averaged."""

    parts: tuple[Models | Personal | Overlay, ...]
    combine: Combine


EvalModels = Models | Personal | Overlay | Mixture


@dataclass(frozen=True)
class Each:
    """An array of which each client gets one row: `rows[i]` for client i, None if that is below 0."""

    array: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Sent:
    """Anything that clients need. `bytes` is its size; `new` clients receive it now, the others have it already."""

    value: Any
    bytes: int
    new: int


def everyone(model: np.ndarray, clients: int, part: Part = "all") -> Models:
    """Hand the same model to every client."""
    return Models(model[None], np.zeros(clients, np.int32), part)
