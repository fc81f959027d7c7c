"""Testing models on clients' samples: the task's metrics and the loss per client, in eval mode."""

from collections.abc import Sequence

import torch

from rayfl.client.passes import Combine
from rayfl.client.stacked import stacked_logits
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.models import FlatModel


@torch.no_grad()
def score_together(
    model: FlatModel,
    tests: Sequence[tuple[torch.Tensor, torch.Tensor]],
    others: Sequence[torch.Tensor] = (),
    combine: Combine = "logits",
    task: Task = CLASSIFICATION,
) -> list[tuple[float, ...]]:
    """Test one model on several clients' samples in shared passes; return each client's metrics, and its loss last.

    `others` are flat vectors of models whose outputs are combined with those of `model`; see Task.combined.
    """
    inputs = torch.cat([x for x, _ in tests])
    labels = torch.cat([y for _, y in tests])
    outputs = stacked_logits(model, torch.stack([model.vector, *others]), inputs)
    output = outputs[0] if len(outputs) == 1 else task.combined(outputs, combine)
    losses = task.loss(output, labels).double().cpu().numpy()
    predicted, true = output.cpu().numpy(), labels.cpu().numpy()
    scores = []
    end = 0
    for _, y in tests:
        begin, end = end, end + len(y)
        part = slice(begin, end)
        measured = [float(metric(predicted[part], true[part])) for metric in task.metrics.values()]
        scores.append((*measured, float(losses[part].mean())))
    return scores
