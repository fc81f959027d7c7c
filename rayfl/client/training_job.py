"""One client's part in a training, the same for all trainers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rayfl.client.bound import Bound, Partner

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class TrainingJob:
    """Where a client begins, what it sees at each step, and what stands in its objective."""

    start: torch.Tensor
    """(size,): parameters, then float buffers, as the model's layout says."""
    batches: Iterable[Batch]
    """Inputs and labels of each step, at most local.batch_size of them."""
    seed: int
    """Of dropout: the noise is what torch.manual_seed(seed) before the training gives; alike on a CPU only."""
    terms: Sequence[Bound] = ()
    partner: Partner | None = None
    trained: tuple[slice, ...] | None = None
    """Which of the parameters change; None: all."""
    velocity: torch.Tensor | None = None
    """(parameters,): the momentum that the training begins with and, in place, leaves; None: it begins from rest."""
