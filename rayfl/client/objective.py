"""Terms that a client's objective can have in addition to the task's loss. One class serves both trainers.

A method creates a term with the models that clients receive, and passes it to `fed.train`. The arithmetic is written
for rows, one per client; the loop trainer has one row. To write your own term, write a subclass that says what the term
is `on`:

- parameters: `add_gradient` adds its gradient in closed form,
- features (before the head) or outputs: `losses` returns a loss per sample, which autograd differentiates.

Models in a term are fixed: they get no gradient, and run in eval mode even while the client trains.
"""

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rayfl.client.handed import Models, Personal

if TYPE_CHECKING:
    from torch import Tensor  # importing torch takes seconds, and methods must be quick to import


@dataclass(frozen=True)
class Term(ABC):
    """A term of the objective. On workers the field `models` is None: the functions below get the models as arguments.

    Their argument `models[k]` (rows, n) has, in each row, the k-th model that the row's client was given. There is one
    model per client, or with `all_models` the whole stack, in which the client's own model is number `own[row]`.
    """

    models: Models | Personal | None

    on: ClassVar[Literal["parameters", "features", "outputs"]] = "parameters"
    #: Whether a client is given all models of the stack.
    all_models: ClassVar[bool] = False
    #: Whether the term is a sum over parameters, so that it can be computed piece by piece.
    separable: ClassVar[bool] = True

    @property
    def counts(self) -> bool:
        """Whether the term has any effect; if not, it is left out, and its models do not travel."""
        return True

    @property
    def moves(self) -> bool:
        """Whether the term moves the parameters itself, at each step, instead of adding to the gradient."""
        return False

    def kept(self, vectors: "Tensor") -> "Tensor":
        """Return the form in which the models (K, n) given to a client are held during its training."""
        return vectors

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add the term's gradient, in place; all arrays are (rows, n) and cover only the part of the given models."""
        raise NotImplementedError(f"{type(self).__name__} is on {self.on}, and has no add_gradient")

    def move(self, parameters: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Move the parameters in place, after the gradient is computed and before the optimiser step."""
        raise NotImplementedError(f"{type(self).__name__} moves the parameters, and has no move")

    def losses(self, numbers: "Tensor", fixed: "Sequence[Tensor]", own: "Tensor") -> "Tensor":
        """Return the term for each sample (rows, samples).

        `numbers` (rows, samples, n) are the features or outputs of the trained models, `fixed[k]` those of the k-th
        fixed model.
        """
        raise NotImplementedError(f"{type(self).__name__} is on {self.on}, and has no losses")


@dataclass(frozen=True)
class Proximal(Term):
    """strength/2 * ||w - W||^2, where W is the model that a client is given, over the part that is given.

    With `per_step` it is not a term of the objective: instead, each step also replaces w by (1 - strength) w +
    strength * W, whatever the learning rate and the momentum are (thesis Eq. 7.13).
    """

    strength: float
    per_step: bool = False

    @property
    def counts(self) -> bool:
        """Whether the strength is not 0."""
        return self.strength != 0

    @property
    def moves(self) -> bool:
        """Whether each step moves the parameters a fraction of the way to W."""
        return self.per_step

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add strength (w - W)."""
        gradient.add_(parameters, alpha=self.strength)
        gradient.sub_(models[0], alpha=self.strength)

    def move(self, parameters: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Move the fraction `strength` of the way to W."""
        parameters.mul_(1 - self.strength).add_(models[0], alpha=self.strength)


@dataclass(frozen=True)
class Linear(Term):
    """weight * <v, w>, where v is a vector that the client is given or keeps: control variates, dual variables."""

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
    """A contrastive term: close to the client's own cluster model, far from the other clusters' models."""

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
    """-weight * log of Eq. 4.3 of the thesis (CON-para).

    sim is the cosine between one part of the trained parameters and the same part of each of K fixed cluster models. If
    either is a zero vector, the angle is undefined: sim is then 0, without a gradient.
    """

    def kept(self, vectors: "Tensor") -> "Tensor":
        """Return the models scaled to length 1."""
        return vectors * inverse_norm(vectors)[:, None]

    def add_gradient(self, parameters: "Tensor", gradient: "Tensor", models: "Sequence[Tensor]", own: "Tensor") -> None:
        """Add the term's gradient.

        Let u_k be the cluster models scaled to length 1, s_k = <u_k, w> / ||w||, and g_k the term's derivative with
        respect to s_k. Then the gradient is (sum_k g_k u_k - (sum_k g_k s_k) w / ||w||) / ||w||.
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
    """-weight * log of Eq. 4.4 of the thesis (CON-rep), averaged over the batch.

    sim is, for each sample, the cosine between the features (before the head) of the trained model, through which the
    gradient flows, and those of each of K fixed cluster models. For zero features, sim is 0, without a gradient.
    """

    on = "features"

    def losses(self, numbers: "Tensor", fixed: "Sequence[Tensor]", own: "Tensor") -> "Tensor":
        """Return minus the log of the softmax value of the client's own cluster."""
        import torch
        from torch.nn.functional import cross_entropy

        direction = _directions(numbers)
        similarity = torch.stack([(direction * _directions(f)).sum(2) for f in fixed], dim=2) / self.temperature
        labels = own[:, None].expand(similarity.shape[:2])
        losses = cross_entropy(similarity.flatten(0, 1), labels.flatten(), reduction="none")
        return self.weight * losses.view(labels.shape)


def inverse_norm(vectors: "Tensor") -> "Tensor":
    """Return 1 / ||v|| over the last dimension; 0 for a zero vector, so that its gradient is 0 and not NaN."""
    import torch

    norm = torch.linalg.vector_norm(vectors, dim=-1)
    return 1 / norm.masked_fill(norm == 0, math.inf)


def _directions(features: "Tensor") -> "Tensor":
    return features * inverse_norm(features)[..., None]
