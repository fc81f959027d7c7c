"""Terms of the objective on the worker, together with the models they refer to, one row per client."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayfl.client.layers import ALIGNED
from rayfl.client.objective import Term
from rayfl.client.stacked import stacked_logits
from rayfl.models import FlatModel, Layout, Part


@dataclass(frozen=True)
class Bound:
    """A term with the models (K, size) that one client was given, and which of them is the client's own."""

    term: Term
    vectors: torch.Tensor
    own: int = 0
    part: Part = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.own < len(self.vectors):  # -1 would silently select the last cluster
            raise ValueError(f"own={self.own} is none of the {len(self.vectors)} models")

    @property
    def kind(self) -> tuple:
        """What must be equal for two clients to be computed in the same step."""
        return self.term, len(self.vectors), self.part


class BoundRows:
    """One term of several clients: their models as K matrices with a row per client.

    If all clients have the same models, all rows read a single copy.
    """

    def __init__(self, bound: Sequence[Bound], size: int, layout: Layout) -> None:
        self.term = bound[0].term
        whole = self.term.on != "parameters"
        self._pieces = (slice(0, layout.size),) if whole else layout.trainable(bound[0].part)
        if len(self._pieces) > 1 and not self.term.separable:
            raise ValueError(f"{type(self.term).__name__} cannot be over part {bound[0].part!r}, which is in pieces")
        self._shared = all(b.vectors is bound[0].vectors for b in bound)
        kept = self._kept(bound[0])
        self._models = [rows_like(v, 1 if self._shared else size, len(v)) for v in kept]
        if self._shared:
            self._models = [m.copy_(v).expand(size, -1) for m, v in zip(self._models, kept, strict=True)]
        self._own = torch.zeros(size, dtype=torch.long, device=kept.device)

    def enter(self, row: int, bound: Bound) -> None:
        """Put a client's term into a row."""
        self._own[row] = bound.own
        if not self._shared:
            for matrix, vector in zip(self._models, self._kept(bound), strict=True):
                matrix[row] = vector

    def models(self, rows: slice) -> list[torch.Tensor]:
        """Return the models of some rows, K matrices."""
        return [matrix[rows] for matrix in self._models]

    def add_gradient(self, rows: slice, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the term's gradient to the gradient of some rows."""
        for where, models in self._parts(rows):
            self.term.add_gradient(parameters[:, where], gradient[:, where], models, self._own[rows])

    def move(self, rows: slice, parameters: torch.Tensor) -> None:
        """Move the parameters of some rows."""
        for where, models in self._parts(rows):
            self.term.move(parameters[:, where], models, self._own[rows])

    def losses(self, rows: slice, numbers: torch.Tensor, fixed: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the term for each sample of some rows."""
        return self.term.losses(numbers.flatten(2), [f.flatten(2) for f in fixed], self._own[rows])

    def _kept(self, bound: Bound) -> torch.Tensor:
        """Return those parts of a client's models that the term uses."""
        pieces = [bound.vectors[:, where] for where in self._pieces]
        return self.term.kept(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1))

    def _parts(self, rows: slice) -> list[tuple[slice, list[torch.Tensor]]]:
        parts, begin = [], 0
        for where in self._pieces:
            end = begin + where.stop - where.start
            parts.append((where, [matrix[rows, begin:end] for matrix in self._models]))
            begin = end
        return parts


def rows_like(like: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """Return a matrix of zeros whose rows begin at equally aligned addresses.

    There is always a gap after each row, even where alignment does not need one. Because of the gap, elementwise
    kernels do not process all rows as a block but one by one, each split in the same way into vector registers and a
    remainder.
    """
    return like.new_zeros(count, (size // ALIGNED + 1) * ALIGNED)[:, :size]


@dataclass(frozen=True)
class Partner:
    """A model (size,) that stays as it was at the round's start; its outputs are added to the trained model's.

    CAM, Eq. 5, 8 and 15; Eq. 15 prints the trained model itself as its partner, but f(x; theta_i) is meant. The
    partner runs in eval mode, so its batch norm neither learns from the client nor depends on the batch.
    """

    vector: torch.Tensor

    def logits(self, model: FlatModel, inputs: torch.Tensor) -> torch.Tensor:
        """Return the partner's outputs, without a gradient; of `model`, only the architecture is used."""
        return stacked_logits(model, self.vector[None], inputs)[0]
