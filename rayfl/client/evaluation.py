"""Testing models on clients' test sets: accuracy, macro-F1 and loss per client, in eval mode."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from rayfl.client.passes import Combine
from rayfl.client.stacked import stacked_logits
from rayfl.models import FlatModel


@torch.no_grad()
def score_together(
    model: FlatModel,
    tests: Sequence[tuple[torch.Tensor, torch.Tensor]],
    classes: int,
    others: Sequence[torch.Tensor] = (),
    combine: Combine = "logits",
) -> list[tuple[float, float, float]]:
    """Test one model on several clients' samples in shared passes; return (accuracy, macro-F1, loss) per client.

    `others` are flat vectors of models that answer together with it: `logits` adds the logits of all (CAM),
    `probabilities` averages their softmax outputs (soft vote), and the loss is minus the log of that average.
    """
    inputs = torch.cat([x for x, _ in tests])
    labels = torch.cat([y for _, y in tests])
    logits = _combined(stacked_logits(model, torch.stack([model.vector, *others]), inputs), combine)
    losses = cross_entropy(logits, labels, reduction="none").double().cpu().numpy()
    predicted = logits.argmax(1).cpu().numpy()
    true = labels.cpu().numpy()
    scores = []
    end = 0
    for _, y in tests:
        begin, end = end, end + len(y)
        part = slice(begin, end)
        accuracy = float(np.mean(predicted[part] == true[part]))
        scores.append((accuracy, macro_f1(true[part], predicted[part], classes), float(losses[part].mean())))
    return scores


def _combined(logits: torch.Tensor, combine: Combine) -> torch.Tensor:
    """Return logits (n, classes) that stand for those of several models, (models, n, classes)."""
    if len(logits) == 1:
        return logits[0]
    if combine == "logits":
        return logits.sum(0)
    if combine == "probabilities":
        # The log of the mean of the softmax outputs: its own softmax is that mean.
        return logits.log_softmax(2).logsumexp(0) - math.log(len(logits))
    raise ValueError(f"combine={combine!r} is not one of logits, probabilities")


def macro_f1(true: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """Return the plain mean of F1 over the classes that occur, as labels or as predictions.

    >>> macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 10)  # F1 is 2/3 for both classes that occur
    0.6666666666666666
    """
    hits = np.bincount(true[true == predicted], minlength=classes)
    both = np.bincount(true, minlength=classes) + np.bincount(predicted, minlength=classes)
    occurs = both > 0
    return float(np.mean(2 * hits[occurs] / both[occurs]))
