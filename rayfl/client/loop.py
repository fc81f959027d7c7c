"""The loop trainer: one client after the other, all arithmetic outside the network on one flat vector."""

from collections.abc import Iterable, Sequence

import torch
from torch.nn.functional import cross_entropy

from rayfl.client.terms import Contrast, FlatPull, ParameterContrast, Partner, RepresentationContrast
from rayfl.client.trainee import Trainee
from rayfl.config import LocalConfig
from rayfl.models import FlatModel
from rayfl.randomness import seed_globals


def train_alone(model: FlatModel, trainee: Trainee, local: LocalConfig, lr: float) -> torch.Tensor:
    """Return the trainee's trained vector (size,), the buffers included; it is `model`'s own, until the next call.

    Seeds the global generators, so wrap calls in `global_generators_kept`.
    """
    model.outside.reset()
    model.load(trainee.start)
    if model.outside.has_own_code:
        seed_globals(trainee.seed)
    else:  # Not torch.manual_seed: it looks for every kind of device there may be, longer than a small step takes.
        torch.default_generator.manual_seed(trainee.seed)
    if model.vector.device.type == "cuda":
        torch.cuda.manual_seed(trainee.seed)
    train(model, trainee.batches, local, lr, trainee.pulls, trainee.partner, trainee.contrasts, trainee.velocity)
    model.outside.gather()
    return model.vector


def train(
    model: FlatModel,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    local: LocalConfig,
    lr: float,
    pulls: Sequence[FlatPull] = (),
    partner: Partner | None = None,
    contrasts: Sequence[Contrast] = (),
    velocity: torch.Tensor | None = None,
) -> None:
    """Run SGD on `model`, in place: cross-entropy plus the pulls, whose gradients are added in closed form.

    Pulls per step move the model themselves, after the gradient is known and before the step is taken. With a partner,
    the cross-entropy is that of both models' added logits; the contrasts are further terms. Momentum goes on from
    `velocity`, in place, or else from rest.
    """
    parameters = model.vector[: model.layout.parameters]
    gradient = model.gradient
    if velocity is None and local.momentum:
        velocity = torch.zeros_like(gradient)
    of_samples = [c for c in contrasts if isinstance(c, RepresentationContrast)]
    of_parameters: list[FlatPull | ParameterContrast] = [p for p in pulls if not p.per_step]
    moves = [p for p in pulls if p.per_step]
    of_parameters += [c for c in contrasts if isinstance(c, ParameterContrast)]
    model.module.train()
    for inputs, labels in batches:
        gradient.zero_()
        _loss(model, inputs, labels, partner, of_samples).backward()
        with torch.no_grad():
            if local.weight_decay:
                gradient.add_(parameters, alpha=local.weight_decay)
            for term in of_parameters:
                term.add_gradient(parameters, gradient)
            step = gradient if velocity is None else velocity.mul_(local.momentum).add_(gradient)
            for pull in moves:
                pull.move(parameters)
            parameters.sub_(step, alpha=lr)


def _loss(
    model: FlatModel,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    partner: Partner | None,
    contrasts: Sequence[RepresentationContrast],
) -> torch.Tensor:
    """Return what goes through autograd."""
    features = None
    if contrasts:
        features, logits = model.features(inputs)
    else:
        logits = model.module(inputs)
    if partner is not None:
        logits = logits + partner.logits(model, inputs)
    loss = cross_entropy(logits, labels)
    if features is not None:
        for contrast in contrasts:
            loss = loss + contrast.loss(model, inputs, features)
    return loss
