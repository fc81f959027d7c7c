"""Several models of one network at once, written out layer by layer.

For networks that are a sequence of plain layers. `vmap` follows any other, but asks Python about each operation and
leaves maps as the layers happen to give them. Here the maps of all models are those of one network whose channels lie
side by side, last in memory: a convolution becomes one with groups, and pooling takes many numbers at once.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from rayfl.models import FlatModel

#: Rows start at multiples of so many numbers, 64 bytes.
ALIGNED = 16

_LAYERS = {
    nn.Linear,
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.Flatten,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.Identity,
}


def is_plain(module: nn.Module) -> bool:
    """Tell whether a network is a sequence of layers that are known here.

    >>> is_plain(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)))
    True
    >>> is_plain(nn.Sequential(nn.LSTM(2, 2)))
    False
    """
    return all(
        type(layer) in _LAYERS
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and getattr(layer, "padding_mode", "zeros") == "zeros"
        and not getattr(layer, "return_indices", False)
        and (getattr(layer, "start_dim", 1), getattr(layer, "end_dim", -1)) == (1, -1)
        for _, layer in _leaves(module)
    )


class PlainLayers:
    """A plain network for calls with rows of weights: (logits,), or with `features` what the head gets and the logits.

    Weights are (models, *shape) each, by their names in the layout, inputs (models, samples, ...); inputs that all
    models share are expanded, not repeated. Layers train or test as those of the network do at the time of the call;
    `noise` draws what dropout then multiplies with, for all models.
    """

    def __init__(
        self, model: FlatModel, features: bool = False, noise: Callable[[torch.Size, float], torch.Tensor] | None = None
    ) -> None:
        self._features, self._noise = features, noise
        held = (*model.module.named_parameters(remove_duplicate=False), *model.module.named_buffers())
        names = {tensor: name for name, tensor in held if name in model.layout.names}
        leaves = _pooled_first(list(_leaves(model.module)))
        self._layers = [(layer, {n: names[t] for n, t in _tensors(layer) if t in names}) for _, layer in leaves]
        self._head = next(at for at, (path, _) in enumerate(leaves) if f"{path}.".startswith(f"{model.head}."))

    def __call__(self, weights: dict[str, torch.Tensor], inputs: torch.Tensor, /) -> tuple[torch.Tensor, ...]:
        """Run all models."""
        flow, features = _Flow(inputs), inputs
        for at, (layer, names) in enumerate(self._layers):
            if at == self._head and self._features:
                features = flow.rows()
            self._run(layer, {name: weights[where] for name, where in names.items()}, flow)
        return (features, flow.rows()) if self._features else (flow.rows(),)

    def _run(self, layer: nn.Module, own: dict[str, torch.Tensor], flow: "_Flow") -> None:
        """Let what flows through the layer, `own` its weights by the layer's names for them."""
        if isinstance(layer, nn.Linear):
            flow.set_rows(_product(flow.rows(), own["weight"], own.get("bias")))
        elif isinstance(layer, nn.Conv2d):
            inputs, groups = flow.maps_for(layer.groups)
            weight, bias = own["weight"].flatten(0, 1), own["bias"].flatten() if "bias" in own else None
            flow.set_maps(F.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, groups))
        elif isinstance(layer, nn.BatchNorm2d):
            flow.set_maps(_normed(layer, own, flow.maps()))
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            flow.set_maps(layer(flow.maps()))
        elif isinstance(layer, nn.Flatten):
            flow.set_rows(flow.rows().flatten(2))
        elif isinstance(layer, nn.Dropout):
            if layer.training and layer.p > 0:
                assert self._noise is not None
                rows = flow.rows()
                flow.set_rows(rows * self._noise(rows.shape, layer.p) if layer.p < 1 else rows * 0)
        else:
            flow.apply(layer)


class _Flow:
    """What goes from layer to layer: rows (models, samples, ...), or maps (samples, models x channels, height, width)
    with the channels last in memory.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self._models, self._numbers, self._are_maps = len(rows), rows, False

    def rows(self) -> torch.Tensor:
        if not self._are_maps:
            return self._numbers
        return self._numbers.unflatten(1, (self._models, -1)).transpose(0, 1)

    def maps(self) -> torch.Tensor:
        if self._are_maps:
            return self._numbers
        return _channels_last(self._numbers.transpose(0, 1).flatten(1, 2))

    def maps_for(self, groups: int) -> tuple[torch.Tensor, int]:
        """Return maps for a convolution, and in how many groups: where all models see the same, that goes in once."""
        if not self._are_maps and groups == 1 and self._numbers.stride(0) == 0:
            return _channels_last(self._numbers[0]), 1
        return self.maps(), groups * self._models

    def set_rows(self, rows: torch.Tensor) -> None:
        self._numbers, self._are_maps = rows, False

    def set_maps(self, maps: torch.Tensor) -> None:
        self._numbers, self._are_maps = maps, True

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let a function of single numbers work on them as they lie."""
        self._numbers = function(self._numbers)


def _channels_last(maps: torch.Tensor) -> torch.Tensor:
    """Return maps with the channels last; a single one too, of which `contiguous` would say that it is as it should be
    while the layers after it take it for one of the other kind.
    """
    samples, channels, height, width = maps.shape
    return maps.movedim(1, -1).reshape(-1).view(samples, height, width, channels).movedim(-1, 1)


def _normed(layer: nn.BatchNorm2d, own: dict[str, torch.Tensor], maps: torch.Tensor) -> torch.Tensor:
    written = ("running_mean", "running_var") if layer.training else ()  # through a view, then
    flat = {name: tensor.view(-1) if name in written else tensor.flatten() for name, tensor in own.items()}
    mean, variance = flat.get("running_mean"), flat.get("running_var")
    training, momentum = layer.training or mean is None, layer.momentum or 0.0
    return F.batch_norm(maps, mean, variance, flat.get("weight"), flat.get("bias"), training, momentum, layer.eps)


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A linear layer for each model, of shapes that make the bits independent of its place; see `aligned`."""
    samples, outputs = rows.shape[1:-1], weight.shape[1]
    flat, weight, bias = aligned(rows.flatten(1, -2), weight, bias)
    factors = flat, weight.transpose(1, 2)
    product = torch.bmm(*factors) if bias is None else torch.baddbmm(bias[:, None], *factors)
    return product[..., :outputs].unflatten(1, samples)


def aligned(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return what F.linear takes, with zeros added where the bits would depend on the row; more outputs then.

    MKL sums in another order for operands at other addresses (modulo 16 bytes on the CPU at hand). In stacks of
    inputs, outputs and their gradients, all rows begin equally only if their sizes are multiples of that.
    """
    outputs, features = weight.shape[-2:]
    samples = inputs.shape[-2]
    more_outputs = -outputs % ALIGNED if samples * outputs % ALIGNED or features * outputs % ALIGNED else 0
    more_features = -features % ALIGNED if samples * features % ALIGNED else 0
    if not more_outputs and not more_features:
        return inputs, weight, bias
    inputs = F.pad(inputs, (0, more_features))
    weight = F.pad(weight, (0, more_features, 0, more_outputs))
    return inputs, weight, None if bias is None else F.pad(bias, (0, more_outputs))


def _leaves(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers in the order of their calls, as often as they are called."""
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for name, child in module._modules.items():  # named_children leaves out what comes again
        assert child is not None
        yield from _leaves(child, f"{path}.{name}" if path else name)


def _pooled_first(leaves: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Put max pooling before a ReLU that it follows.

    That leaves a fraction of the numbers to the ReLU and changes nothing: it keeps their order, and where the greatest
    is not above 0 no gradient passes either way.
    """
    turned = list(leaves)
    for at, (first, second) in enumerate(pairwise(leaves)):
        one_sequence = first[0].rpartition(".")[0] == second[0].rpartition(".")[0]
        if one_sequence and type(first[1]) is nn.ReLU and type(second[1]) is nn.MaxPool2d:
            turned[at : at + 2] = second, first
    return turned


def _tensors(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from layer.named_parameters(recurse=False, remove_duplicate=False)
    yield from layer.named_buffers(recurse=False)
