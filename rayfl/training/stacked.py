"""Fixed models, given as flat vectors, on one data set: their logits, features, losses and predictions in eval mode.

The FlatModel at hand lends its architecture only: its vector, gradient and batch norm statistics are neither read nor
changed, and its mode (training or eval) is afterwards what it was. Training is in `loop`, scores are in `evaluation`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from rayfl.models import FlatModel
from rayfl.models.flat import unflattened
from rayfl.training.passes import CHUNK

#: Models times samples in one pass of `vmap`; part of the bits too.
ROWS = 4096

#: Layers of which `vmap` makes one product for many models, faster than one model after the other. Milliseconds on one
#: thread of a CPU, models x samples, vmap / loop: mlp on 8x8 100x20 3.5 / 12.6, 10x32 0.9 / 2.1; mlp on 28x28
#: 100x20 15 / 34, 100x72 36 / 55, 100x600 263 / 258. Where anything else occurs, the loop is taken. With convolutions
#: vmap gains little and loses much: digits_cnn 4x72 4.8 / 5.3, thesis_cifar10 10x32 26 / 31 but 10x300 436 / 271,
#: thesis_fashion_mnist 10x300 2249 / 613. It has no LSTM, and a user's own forward() may do what it cannot follow.
_DENSE = {
    nn.Sequential,
    nn.Flatten,
    nn.Linear,
    nn.BatchNorm1d,
    nn.Dropout,
    nn.Identity,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
}


def stacked_logits(model: FlatModel, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits (K, n, classes) of K models, `stack` (K, size), for n samples.

    The result depends on `stack` and `inputs` alone. For networks that are looped over (see _DENSE), row k depends on
    stack[k] and `inputs` alone; for the others, on how many models there are too, in the last bits.
    """
    return _outputs(model, False, stack, inputs)


def stacked_features(model: FlatModel, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return what the head of each of K models gets for n samples, (K, n, features); see `stacked_logits`."""
    return _outputs(model, True, stack, inputs)


@torch.no_grad()
def sample_losses(
    model: FlatModel,
    stack: torch.Tensor,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    partner_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the cross-entropy of K models on each of n samples, (K, n) in float64.

    `partner_logits` (n, classes) are added to the logits of every model (CAM, Eq. 2). For the same numbers wherever a
    client is placed, pass one client's whole data set and the whole stack.
    """
    losses = []
    for models in stack.split(_models_at_once(model, len(inputs))):
        logits = stacked_logits(model, models, inputs)
        if partner_logits is not None:
            logits = logits + partner_logits
        each = cross_entropy(logits.flatten(0, 1), labels.repeat(len(models)), reduction="none")
        losses.append(each.view(len(models), -1).double())
    return torch.cat(losses)


def predictions(model: FlatModel, vector: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the class probabilities (n, classes) that the model `vector` gives (FedTSDP)."""
    return stacked_logits(model, vector[None], inputs)[0].softmax(1)


@torch.no_grad()
def _outputs(model: FlatModel, features: bool, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Run the network with each row of the stack."""
    layout, network = model.layout, model.network(features)
    where_each = [
        (network.places[name], where, shape, last)
        for name, where, shape, last in zip(
            layout.names, layout.slices, layout.shapes, layout.channels_last, strict=True
        )
    ]

    def run(vector: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        tensors = {
            place: unflattened(vector[where], shape, last)
            for places, where, shape, last in where_each
            for place in places
        }
        output = functional_call(network, tensors, (part,), tie_weights=False)[0]
        return output.flatten(1) if features else output

    parts = inputs.split(CHUNK)
    with _evaluating(model.module):
        if len(stack) > 1 and _is_dense(model.module):
            run_all = vmap(run, in_dims=(0, None))
            groups = stack.split(_models_at_once(model, len(inputs)))
            return torch.cat([torch.cat([run_all(group, part) for part in parts], dim=1) for group in groups])
        return torch.stack([torch.cat([run(vector, part) for part in parts]) for vector in stack])


def _models_at_once(model: FlatModel, samples: int) -> int:
    return max(1, ROWS // max(1, min(samples, CHUNK))) if _is_dense(model.module) else 1


def _is_dense(module: nn.Module) -> bool:
    return all(type(m) in _DENSE for m in module.modules())


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
