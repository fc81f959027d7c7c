"""What may stand in a client's objective besides cross-entropy: pulls, a fixed partner, contrasts to cluster models.

Terms over the parameters alone add their gradient in closed form to the flat gradient; those over samples go through
autograd. Other models in a term are fixed: they get no gradient, and run in eval mode even while the client trains.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import cross_entropy

from rayfl.client.stacked import stacked_features, stacked_logits
from rayfl.models import FlatModel


@dataclass(frozen=True)
class FlatPull:
    """The term strength/2 * ||w - target||^2 over one part of the parameters, `target` being that part's values.

    With `per_step` it is no term of the objective: each step leaves (1 - strength) w + strength * target, besides what
    the optimiser does, whatever the learning rate and the momentum are (thesis Eq. 7.13).
    """

    target: torch.Tensor
    strength: float
    part: slice
    per_step: bool = False

    def add_gradient(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add strength (w - target) to this part of the flat gradient."""
        part = gradient[self.part]
        part.add_(parameters[self.part], alpha=self.strength)
        part.sub_(self.target, alpha=self.strength)

    def move(self, parameters: torch.Tensor) -> None:
        """Move this part of the parameters by `strength` of the way to the target."""
        parameters[self.part].mul_(1 - self.strength).add_(self.target, alpha=self.strength)


@dataclass(frozen=True)
class Partner:
    """A model (size,) that stays as it was at the round's start; its logits are added to the trained model's.

    CAM, Eq. 5, 8 and 15; the last prints the trained model itself as its partner, where f(x; theta_i) is meant. The
    partner runs in eval mode, so its batch norm neither learns from the client nor depends on the batch.
    """

    vector: torch.Tensor

    def logits(self, model: FlatModel, inputs: torch.Tensor) -> torch.Tensor:
        """Return the partner's logits, without a gradient; `model` lends its architecture."""
        return stacked_logits(model, self.vector[None], inputs)[0]


@dataclass(frozen=True)
class ParameterContrast:
    """weight times minus the log of Eq. 4.3 of the thesis (CON-para): near its own cluster's model, far from others.

    sim is the cosine between one part of the trained parameters and that part of each of K fixed cluster models, the
    rows of `models` (K, P or more). Where one of the two is zero there is no angle: sim is 0, without a gradient.
    """

    models: torch.Tensor
    own: int
    tau: float
    weight: float
    part: slice

    def __post_init__(self) -> None:
        _check_contrast(self.models, self.own, self.tau)

    @cached_property
    def _inverse_norms(self) -> torch.Tensor:
        return _inverse_norm(self.models[:, self.part])

    def add_gradient(self, parameters: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the term's gradient to this part of the flat gradient.

        With u_k the cluster models at unit length, s_k = <u_k, w> / ||w|| and g_k the term's derivative by s_k, it is
        (sum_k g_k u_k - (sum_k g_k s_k) w / ||w||) / ||w||.
        """
        w, models = parameters[self.part], self.models[:, self.part]
        inverse_norm = _inverse_norm(w)
        similarity = (models @ w) * self._inverse_norms * inverse_norm
        slope = (similarity / self.tau).softmax(0)
        slope[self.own] -= 1
        slope *= self.weight / self.tau
        part = gradient[self.part]
        part.add_((slope * self._inverse_norms * inverse_norm) @ models)
        part.sub_(w * ((slope @ similarity) * inverse_norm.square()))


@dataclass(frozen=True)
class RepresentationContrast:
    """weight times minus the log of Eq. 4.4 of the thesis (CON-rep), averaged over the batch.

    sim is the cosine between the features before the head, for each sample: the trained model's, through which the
    gradient flows, and those of K fixed cluster models, `models` (K, size). Zero features have sim 0, no gradient.
    """

    models: torch.Tensor
    own: int
    tau: float
    weight: float

    def __post_init__(self) -> None:
        _check_contrast(self.models, self.own, self.tau)

    def loss(self, model: FlatModel, inputs: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the term for a batch, `features` being what the trained model's head got for `inputs`."""
        features = features.flatten(1)
        fixed = stacked_features(model, self.models, inputs)
        directions = features * _inverse_norm(features)[:, None]
        fixed_directions = fixed * _inverse_norm(fixed)[..., None]
        similarity = torch.einsum("nd,knd->nk", directions, fixed_directions)
        own = torch.full((len(inputs),), self.own, device=similarity.device)
        return self.weight * cross_entropy(similarity / self.tau, own)


Contrast = ParameterContrast | RepresentationContrast


def _inverse_norm(vectors: torch.Tensor) -> torch.Tensor:
    """Return 1 / ||v|| over the last dimension, and 0 for a zero vector, whose gradient is then 0 and not NaN."""
    norm = torch.linalg.vector_norm(vectors, dim=-1)
    return 1 / norm.masked_fill(norm == 0, math.inf)


def _check_contrast(models: torch.Tensor, own: int, tau: float) -> None:
    if not 0 <= own < len(models):  # -1 would silently be the last cluster
        raise ValueError(f"own={own} is none of the {len(models)} cluster models")
    if not tau > 0:
        raise ValueError(f"tau={tau} must be above 0")
