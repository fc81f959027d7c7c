"""The loop trainer: one client after the other, all arithmetic outside the network on one flat vector."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from rayfl.config import LocalConfig
from rayfl.models import FlatModel


@dataclass(frozen=True)
class FlatPull:
    """The term strength/2 * ||w - target||^2 over one part of the parameters, `target` being that part's values."""

    target: torch.Tensor
    strength: float
    part: slice


def train(
    model: FlatModel,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    local: LocalConfig,
    lr: float,
    pulls: Sequence[FlatPull] = (),
) -> None:
    """Run SGD on `model`, in place: cross-entropy plus the pulls, whose gradients are added in closed form."""
    parameters = model.vector[: model.layout.parameters]
    gradient = model.gradient
    velocity = torch.zeros_like(gradient) if local.momentum else None
    model.module.train()
    for inputs, labels in batches:
        gradient.zero_()
        cross_entropy(model.module(inputs), labels).backward()
        with torch.no_grad():
            if local.weight_decay:
                gradient.add_(parameters, alpha=local.weight_decay)
            for pull in pulls:
                part = gradient[pull.part]
                part.add_(parameters[pull.part], alpha=pull.strength)
                part.sub_(pull.target, alpha=pull.strength)
            step = gradient if velocity is None else velocity.mul_(local.momentum).add_(gradient)
            parameters.sub_(step, alpha=lr)
