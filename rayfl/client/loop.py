"""The loop trainer: one client after the other, all arithmetic outside the network on one flat vector."""

from collections.abc import Iterable, Sequence

import torch

from rayfl.client.optimisers import State, optimiser_of
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.client.terms import Contrast, FlatPull, ParameterContrast, Partner, RepresentationContrast
from rayfl.client.trainee import Trainee
from rayfl.config import LocalConfig
from rayfl.models import FlatModel
from rayfl.randomness import seed_globals


def train_alone(
    model: FlatModel, trainee: Trainee, local: LocalConfig, lr: float, task: Task = CLASSIFICATION
) -> torch.Tensor:
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
    train(
        model,
        trainee.batches,
        local,
        lr,
        trainee.pulls,
        trainee.partner,
        trainee.contrasts,
        trainee.velocity,
        task,
        trainee.trained,
    )
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
    task: Task = CLASSIFICATION,
    trained: Sequence[slice] | None = None,
) -> None:
    """Train `model`, in place: the task's loss plus the pulls, whose gradients are added in closed form.

    Pulls per step move the model themselves, after the gradient is known and before the step is taken. With a partner,
    the loss is that of both models' added outputs; the contrasts are further terms. Momentum goes on from `velocity`,
    in place, or else from rest. Of the parameters, only the slices `trained` change, by default all.
    """
    parameters = model.vector[: model.layout.parameters]
    gradient = model.gradient
    optimiser = optimiser_of(local)
    state: State = optimiser.init(gradient) if velocity is None else {"velocity": velocity}
    trained = trained or (slice(0, len(parameters)),)
    of_samples = [c for c in contrasts if isinstance(c, RepresentationContrast)]
    of_parameters: list[FlatPull | ParameterContrast] = [p for p in pulls if not p.per_step]
    moves = [p for p in pulls if p.per_step]
    of_parameters += [c for c in contrasts if isinstance(c, ParameterContrast)]
    model.module.train()
    for inputs, labels in batches:
        gradient.zero_()
        _loss(model, inputs, labels, partner, of_samples, task).backward()
        with torch.no_grad():
            for term in of_parameters:
                term.add_gradient(parameters, gradient)
            if local.clip_norm is not None:
                clip([gradient[where] for where in trained], local.clip_norm)
            step = optimiser.step(parameters, gradient, state)
            for pull in moves:
                pull.move(parameters)
            for where in trained:
                parameters[where].sub_(step[where], alpha=lr)


def clip(pieces: Sequence[torch.Tensor], length: float) -> None:
    """Scale one client's gradient, given in pieces, down in place to at most this length."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]))
    factor = (length / norm).clamp(max=1.0)  # of a gradient of zeros: infinity, clamped
    for piece in pieces:
        piece.mul_(factor)


def _loss(
    model: FlatModel,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    partner: Partner | None,
    contrasts: Sequence[RepresentationContrast],
    task: Task,
) -> torch.Tensor:
    """Return what goes through autograd."""
    features = None
    if contrasts:
        features, logits = model.features(inputs)
    else:
        logits = model.module(inputs)
    if partner is not None:
        logits = logits + partner.logits(model, inputs)
    loss = task.loss(logits, labels).mean()
    if features is not None:
        for contrast in contrasts:
            loss = loss + contrast.loss(model, inputs, features)
    return loss
