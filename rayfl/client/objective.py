"""What may stand in a client's objective besides the task's loss: terms, each one class for both trainers.

A method makes a term with the models that clients are handed, and gives it to `fed.train`. The arithmetic is written
for rows, one client each; the loop has one row. A term of one's own is a subclass that says what it is `on`:

- parameters: `add_gradient` adds its gradient in closed form,
- features (before the head) or outputs: `losses` gives a loss per sample, which goes through autograd.

Models in a term are fixed: they get no gradient, and run in eval mode even while the client trains.
"""

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rayfl.client.handed import Models, Personal

if TYPE_CHECKING:
    from torch import Tensor  # methods are imported where there is no torch yet: it takes seconds


@dataclass(frozen=True)
class Term(ABC):
    """A term of the objective. Where it comes to clients, `models` is None: each method gets their rows of it.

    `models[k]` (rows, n) has, in each row, the k-th model that this client was handed: there is one, or with
    `all_models` those of the whole stack, of which the client's own is number `own[row]`.
    """

    models: Models | Personal | None

    on: ClassVar[Literal["parameters", "features", "outputs"]] = "parameters"
    #: Whether a client is handed all models of the stack.
    all_models: ClassVar[bool] = False
    #: Whether the term is a sum over numbers, so that it can be computed piece by piece.
    separable: ClassVar[bool] = True

    @property
    def counts(self) -> bool:
        """Whether the term does anything; one that does not is left out, and its models do not travel."""
        return True

    @property
    def moves(self) -> bool:
        """Whether the term moves the parameters itself, at each step, instead of adding to the gradient."""
        return False

    def kept(self, vectors: "Tensor") -> "Tensor":
        """Return what is kept of the models (K, n) that a client was handed, as long as it trains."""
        return vectors

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add the term's gradient, in place; all are (rows, n), over the part that the models were handed for."""
        raise NotImplementedError(f"{type(self).__name__} is on {self.on}, and has no add_gradient")

    def move(self, parameters: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Move the parameters, in place, once the gradient is known and before the step."""
        raise NotImplementedError(f"{type(self).__name__} moves the parameters, and has no move")

    def losses(self, numbers: "Tensor", fixed: "Sequence[Tensor]", own: "Tensor") -> "Tensor":
        """Return the term for each sample (rows, samples).

        `numbers` (rows, samples, n) are the features or outputs of the trained models, `fixed[k]` those of the k-th.
        """
        raise NotImplementedError(f"{type(self).__name__} is on {self.on}, and has no losses")


@dataclass(frozen=True)
class Proximal(Term):
    """strength/2 * ||w - W||^2, W being the model that a client is handed, over the part that is handed over.

    With `per_step` it is no term of the objective: each step leaves (1 - strength) w + strength * W, besides what the
    optimiser does, whatever the learning rate and the momentum are (thesis Eq. 7.13).
    """

    strength: float
    per_step: bool = False

    @property
    def counts(self) -> bool:
        """Whether the strength is not 0."""
        return self.strength != 0

    @property
    def moves(self) -> bool:
        """Whether each step goes a share of the way."""
        return self.per_step

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add strength (w - W)."""
        gradient.add_(parameters, alpha=self.strength)
        gradient.sub_(models[0], alpha=self.strength)

    def move(self, parameters: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Go `strength` of the way to W."""
        parameters.mul_(1 - self.strength).add_(models[0], alpha=self.strength)


@dataclass(frozen=True)
class Linear(Term):
    """weight * <v, w>, v being the vector that a client is handed or keeps: control variates, dual variables."""

    weight: float = 1.0

    @property
    def counts(self) -> bool:
        """Whether the weight is not 0."""
        return self.weight != 0

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add weight * v."""
        gradient.add_(models[0], alpha=self.weight)


@dataclass(frozen=True)
class _Contrast(Term):
    """Near its own cluster's model, far from the others."""

    temperature: float
    weight: float

    all_models = True
    separable = False

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be above 0")

    @property
    def counts(self) -> bool:
        """Whether the weight is not 0."""
        return self.weight != 0


@dataclass(frozen=True)
class ParameterContrast(_Contrast):
    """weight times minus the log of Eq. 4.3 of the thesis (CON-para).

    sim is the cosine between one part of the trained parameters and that part of each of K fixed cluster models. Where
    one of the two is zero there is no angle: sim is 0, without a gradient.
    """

    def kept(self, vectors: "Tensor") -> "Tensor":
        """Return the models at unit length."""
        return vectors * inverse_norm(vectors)[:, None]

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add the term's gradient.

        With u_k the cluster models at unit length, s_k = <u_k, w> / ||w|| and g_k the term's derivative by s_k, it is
        (sum_k g_k u_k - (sum_k g_k s_k) w / ||w||) / ||w||.
        """
        import torch
        from torch.nn.functional import one_hot

        inverse = inverse_norm(parameters)[:, None]
        similarity = torch.stack([(u * parameters).sum(1) for u in models], dim=1) * inverse
        slope = (similarity / self.temperature).softmax(1) - one_hot(own, len(models))
        slope *= self.weight / self.temperature
        for k, u in enumerate(models):
            gradient.addcmul_(u, slope[:, k, None] * inverse)
        gradient.sub_(parameters * ((slope * similarity).sum(1, keepdim=True) * inverse.square()))


@dataclass(frozen=True)
class FeatureContrast(_Contrast):
    """weight times minus the log of Eq. 4.4 of the thesis (CON-rep), averaged over the batch.

    sim is the cosine between the features before the head, for each sample: the trained model's, through which the
    gradient flows, and those of K fixed cluster models. Zero features have sim 0, no gradient.
    """

    on = "features"

    def losses(self, numbers: "Tensor", fixed: "Sequence[Tensor]", own: "Tensor") -> "Tensor":
        """Return minus the log of the share of one's own cluster."""
        import torch
        from torch.nn.functional import cross_entropy

        direction = _directions(numbers)
        similarity = torch.stack([(direction * _directions(f)).sum(2) for f in fixed], dim=2) / self.temperature
        labels = own[:, None].expand(similarity.shape[:2])
        losses = cross_entropy(similarity.flatten(0, 1), labels.flatten(), reduction="none")
        return self.weight * losses.view(labels.shape)


def inverse_norm(vectors: "Tensor") -> "Tensor":
    """Return 1 / ||v|| over the last dimension, and 0 for a zero vector, whose gradient is then 0 and not NaN."""
    import torch

    norm = torch.linalg.vector_norm(vectors, dim=-1)
    return 1 / norm.masked_fill(norm == 0, math.inf)


def _directions(features: "Tensor") -> "Tensor":
    return features * inverse_norm(features)[..., None]
