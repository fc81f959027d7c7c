"""The loop trainer: one client after the other; all arithmetic outside the network is done on one flat vector."""

from collections.abc import Iterable, Sequence

import torch

from rayfl.client.bound import Bound, BoundRows, Partner
from rayfl.client.optimisers import State, optimiser_of
from rayfl.client.stacked import stacked_features, stacked_logits
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.client.training_job import TrainingJob
from rayfl.config import LocalConfig
from rayfl.models import FlatModel
from rayfl.randomness import seed_globals


def train_alone(
    model: FlatModel, job: TrainingJob, local: LocalConfig, lr: float, task: Task = CLASSIFICATION
) -> torch.Tensor:
    """Return the job's trained vector (size,), buffers included. It is `model.vector`, which the next call overwrites.

    Seeds the global generators, so wrap calls in `global_generators_kept`.
    """
    model.outside.reset()
    model.load(job.start)
    if model.outside.has_own_code:
        seed_globals(job.seed)
    else:  # Not torch.manual_seed: it checks for every type of device, which takes longer than a small step.
        torch.default_generator.manual_seed(job.seed)
    if model.vector.device.type == "cuda":
        torch.cuda.manual_seed(job.seed)
    train(
        model,
        job.batches,
        local,
        lr,
        job.terms,
        job.partner,
        job.velocity,
        task,
        job.trained,
    )
    model.outside.gather()
    return model.vector


def train(
    model: FlatModel,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    local: LocalConfig,
    lr: float,
    terms: Sequence[Bound] = (),
    partner: Partner | None = None,
    velocity: torch.Tensor | None = None,
    task: Task = CLASSIFICATION,
    trained: Sequence[slice] | None = None,
) -> None:
    """Train `model` in place, on the task's loss plus the terms.

    Terms that move the model do so after the gradient is computed and before the optimiser step. With a partner, the
    loss is computed on the sum of both models' outputs. Momentum continues from `velocity`, which is updated in place;
    without it, momentum starts at zero. Only the parameters in the slices `trained` change, by default all.
    """
    parameters = model.vector[: model.layout.parameters]
    gradient = model.gradient
    optimiser = optimiser_of(local)
    state: State = optimiser.init(gradient) if velocity is None else {"velocity": velocity}
    trained = trained or (slice(0, len(parameters)),)
    row = slice(0, 1)
    bound = [BoundRows([term], 1, model.layout) for term in terms]
    for rows, each in zip(bound, terms, strict=True):
        rows.enter(0, each)
    of_samples = [rows for rows in bound if rows.term.on != "parameters"]
    moves = [rows for rows in bound if rows.term.moves]
    of_parameters = [rows for rows in bound if rows not in (*of_samples, *moves)]
    model.module.train()
    for inputs, labels in batches:
        gradient.zero_()
        _loss(model, inputs, labels, partner, of_samples, task).backward()
        with torch.no_grad():
            for term in of_parameters:
                term.add_gradient(row, parameters[None], gradient[None])
            if local.clip_norm is not None:
                clip([gradient[where] for where in trained], local.clip_norm)
            step = optimiser.step(parameters, gradient, state)
            for term in moves:
                term.move(row, parameters[None])
            for where in trained:
                parameters[where].sub_(step[where], alpha=lr)


def clip(pieces: Sequence[torch.Tensor], length: float) -> None:
    """Scale one client's gradient, given in pieces, down in place to at most this length."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]))
    factor = (length / norm).clamp(max=1.0)  # for a gradient of zeros: infinity, clamped to 1
    for piece in pieces:
        piece.mul_(factor)


def _loss(
    model: FlatModel,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    partner: Partner | None,
    terms: Sequence[BoundRows],
    task: Task,
) -> torch.Tensor:
    """Return the loss that autograd differentiates."""
    found = {}
    if any(rows.term.on == "features" for rows in terms):
        found["features"], outputs = model.features(inputs)
    else:
        outputs = model.module(inputs)
    found["outputs"] = outputs
    if partner is not None:
        outputs = outputs + partner.logits(model, inputs)
    loss = task.loss(outputs, labels).mean()
    for rows in terms:
        run = stacked_features if rows.term.on == "features" else stacked_logits
        fixed = run(model, torch.cat(rows.models(slice(0, 1))), inputs)
        loss = loss + rows.losses(slice(0, 1), found[rows.term.on][None], list(fixed[:, None])).mean()
    return loss
