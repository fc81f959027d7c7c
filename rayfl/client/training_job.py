"""One client's training in one round, in a form that all trainers take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rayfl.client.bound import Bound, Partner

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class TrainingJob:
    """The weights a client starts from, the batch of each step, and the terms of its objective."""

    start: torch.Tensor
    """(size,): parameters, then float buffers, in the order of the model's layout."""
    batches: Iterable[Batch]
    """Inputs and labels of each step, at most local.batch_size of them."""
    seed: int
    """For dropout: the same noise as after torch.manual_seed(seed). Trainers agree on it on CPUs only."""
    terms: Sequence[Bound] = ()
    partner: Partner | None = None
    trained: tuple[slice, ...] | None = None
    """Which of the parameters change; None: all."""
    velocity: torch.Tensor | None = None
    """(parameters,): the momentum at the start; training updates it in place. None: momentum starts at zero."""
