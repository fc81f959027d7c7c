"""Terms of the objective where clients are trained: with the models that were handed over, a row per client."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayfl.client.layers import ALIGNED
from rayfl.client.objective import Term
from rayfl.client.stacked import stacked_logits
from rayfl.models import FlatModel, Layout, Part


@dataclass(frozen=True)
class Bound:
    """A term with what one client was handed: models (K, size), and which of them is its own."""

    term: Term
    vectors: torch.Tensor
    own: int = 0
    part: Part = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.own < len(self.vectors):  # -1 would silently be the last cluster
            raise ValueError(f"own={self.own} is none of the {len(self.vectors)} models")

    @property
    def kind(self) -> tuple:
        """What two clients must have in common to share the arithmetic of a step."""
        return self.term, len(self.vectors), self.part


class BoundRows:
    """One term of several clients: their models as K matrices, a row per client.

    Where all clients have the same models there is one copy that all rows read.
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
        """Let a client's term into a row."""
        self._own[row] = bound.own
        if not self._shared:
            for matrix, vector in zip(self._models, self._kept(bound), strict=True):
                matrix[row] = vector

    def models(self, rows: slice) -> list[torch.Tensor]:
        """Return the models of some rows, K matrices."""
        return [matrix[rows] for matrix in self._models]

    def add_gradient(self, rows: slice, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add to the gradient of some rows."""
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
        """Return what of a client's models the term is about."""
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

    There is a gap after each row, even where it is not needed for that: an elementwise kernel then treats the rows one
    by one, the same numbers of each in vector registers and the rest at the end, and not all rows as one.
    """
    return like.new_zeros(count, (size // ALIGNED + 1) * ALIGNED)[:, :size]


@dataclass(frozen=True)
class Partner:
    """A model (size,) that stays as it was at the round's start; its outputs are added to the trained model's.

    CAM, Eq. 5, 8 and 15; the last prints the trained model itself as its partner, where f(x; theta_i) is meant. The
    partner runs in eval mode, so its batch norm neither learns from the client nor depends on the batch.
    """

    vector: torch.Tensor

    def logits(self, model: FlatModel, inputs: torch.Tensor) -> torch.Tensor:
        """Return the partner's outputs, without a gradient; `model` lends its architecture."""
        return stacked_logits(model, self.vector[None], inputs)[0]
