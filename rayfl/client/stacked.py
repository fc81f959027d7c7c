"""Fixed models, given as flat vectors, on one data set: their logits, features, losses and predictions in eval mode.

Only the architecture of the given FlatModel is used: its vector, gradient and batch norm statistics are neither read
nor changed, and its mode (training or eval) is restored. Training is in `loop`, scores are in `evaluation`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, vmap

from rayfl.client.layer_types import VMAPPED
from rayfl.client.layers import PlainLayers, is_plain
from rayfl.client.passes import CHUNK
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.models import FlatModel
from rayfl.models.flat import by_name

#: The maximum of models times samples in one pass of several models. Changing it may change bits.
ROWS = 4096

#: Samples in such a pass through a network with feature maps: more would not fit the caches.
_PART = 128

#: Into how many rows the samples of a single model with feature maps are folded. Convolutions with few channels use a
#: CPU's vector registers badly; grouped convolutions use them better. Milliseconds for 512 samples, one thread, 1 / 4
#: rows: digits_cnn 2.3 / 1.3, thesis_cifar10 25 / 19, thesis_fashion_mnist 41 / 36, fedac_cnn 205 / 209.
_FOLDS = 4


def stacked_logits(model: FlatModel, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits (K, n, classes) of K models, `stack` (K, size), for n samples.

    The result depends only on `stack` and `inputs`; the last bits of row k may depend on the number of models.
    """
    return _outputs(model, False, stack, inputs)


def stacked_features(model: FlatModel, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs of each of K models' heads for n samples, (K, n, features); see `stacked_logits`."""
    return _outputs(model, True, stack, inputs)


@torch.no_grad()
def sample_losses(
    model: FlatModel,
    stack: torch.Tensor,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    partner_logits: torch.Tensor | None = None,
    task: Task = CLASSIFICATION,
) -> torch.Tensor:
    """Return the loss of K models on each of n samples, (K, n) in float64.

    `partner_logits` (n, classes) are added to the logits of every model (CAM, Eq. 2). Pass one client's whole data set
    and the whole stack: then the result does not depend on the worker on which the client is.
    """
    losses = []
    for models in stack.split(_models_at_once(model, len(inputs))):
        logits = stacked_logits(model, models, inputs)
        if partner_logits is not None:
            logits = logits + partner_logits
        each = task.loss(logits.flatten(0, 1), labels.repeat(len(models)))
        losses.append(each.view(len(models), -1).double())
    return torch.cat(losses)


def predictions(model: FlatModel, vector: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return the class probabilities (n, classes) that the model `vector` gives (FedTSDP)."""
    return stacked_logits(model, vector[None], inputs)[0].softmax(1)


@torch.no_grad()
def _outputs(model: FlatModel, features: bool, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Run the network with each row of the stack."""
    with _evaluating(model.module):
        groups = stack.split(_models_at_once(model, len(inputs)))
        if is_plain(model.module):
            return torch.cat([_plain_outputs(model, features, group, inputs) for group in groups])
        return torch.cat([_other_outputs(model, features, group, inputs) for group in groups])


def _plain_outputs(model: FlatModel, features: bool, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Run a plain network with all rows at once."""
    layers, models = PlainLayers(model, features), len(stack)
    parts = inputs.split(_PART if models > 1 and _has_maps(model.module) else CHUNK)
    if models == 1 and _has_maps(model.module) and inputs.device.type == "cpu":
        weights = by_name(model.layout, stack.expand(_FOLDS, -1))
        outputs = [layers(weights, _folded(part))[0].flatten(2).flatten(0, 1)[: len(part)] for part in parts]
        return torch.cat(outputs)[None]
    weights = by_name(model.layout, stack)
    return torch.cat([layers(weights, part.expand(models, *part.shape))[0].flatten(2) for part in parts], dim=1)


def _folded(samples: torch.Tensor) -> torch.Tensor:
    """Divide samples into _FOLDS rows; the last rows are filled up with repeated samples."""
    rows = -(-len(samples) // _FOLDS)
    if len(samples) % _FOLDS:
        samples = samples[torch.arange(_FOLDS * rows, device=samples.device) % len(samples)]
    return samples.unflatten(0, (_FOLDS, rows))


def _other_outputs(model: FlatModel, features: bool, stack: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Run any other network, with `vmap` or one row after the other."""
    network, parts = model.network(features), inputs.split(CHUNK)

    def run(vector: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        held = {p: tensor for name, tensor in by_name(model.layout, vector).items() for p in network.places[name]}
        output = functional_call(network, held, (part,), tie_weights=False)[0]
        return output.flatten(1) if features else output

    if len(stack) > 1 and _can_be_mapped(model.module):
        return torch.cat([vmap(run, in_dims=(0, None))(stack, part) for part in parts], dim=1)
    outputs = []
    for vector in stack:
        with model.outside.fresh():
            outputs.append(torch.cat([run(vector, part) for part in parts]))
    return torch.stack(outputs)


def _models_at_once(model: FlatModel, samples: int) -> int:
    most, part = (ROWS // 4, _PART) if _has_maps(model.module) else (ROWS, CHUNK)
    return max(1, most // max(1, min(samples, part)))


def _has_maps(module: nn.Module) -> bool:
    return any(isinstance(m, nn.Conv2d) for m in module.modules())


def _can_be_mapped(module: nn.Module) -> bool:
    return all(type(m) in VMAPPED for m in module.modules())


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
