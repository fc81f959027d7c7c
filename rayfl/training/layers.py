"""Several models of one network at once, written out layer by layer.

For networks that are a sequence of plain layers. `vmap` follows any other, but asks Python about each operation and
leaves maps as the layers happen to give them. Here the maps of several models are those of one network whose channels
lie side by side, last in memory: a convolution becomes one with groups, and pooling takes many numbers at once.

Libraries may sum in another order when a call has another number of models. Where a model's numbers must not depend on
how many others there are (`fixed`), every product, convolution and batch norm is a call for a block of models, whose
size depends on the network's inputs alone. All other layers compute each number from one model's numbers only, and in
the same way for any number of models.
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


def block_size(module: nn.Module, inputs: torch.Size) -> int:
    """Return how many models one call is for, by the network and the size of its inputs (samples, ...) alone.

    More per call is faster, above all where maps are tiny; but as many are computed for a single client, too.
    """
    has_large_maps = any(isinstance(layer, nn.Conv2d) for layer in module.modules()) and inputs[-2:].numel() > 256
    return 2 if has_large_maps else 4


class PlainLayers:
    """A plain network for calls with rows of weights: (logits,), or with `features` what the head gets and the logits.

    Weights are (models, *shape) each, by their names in the layout, inputs (models, samples, ...); inputs that all
    models share are expanded, not repeated. Layers train or test as those of the network do at the time of the call;
    `noise` draws what dropout then multiplies with, for all models. If the calls are to be of a `fixed` size, there
    must be a multiple of `block_size` models, or one.
    """

    def __init__(
        self,
        model: FlatModel,
        features: bool = False,
        noise: Callable[[torch.Size, float], torch.Tensor] | None = None,
        fixed: bool = False,
    ) -> None:
        self._module, self._features, self._noise, self._fixed = model.module, features, noise, fixed
        held = (*model.module.named_parameters(remove_duplicate=False), *model.module.named_buffers())
        names = {tensor: name for name, tensor in held if name in model.layout.names}
        leaves = _pooled_first(list(_leaves(model.module)))
        self._layers = [(layer, {n: names[t] for n, t in _tensors(layer) if t in names}) for _, layer in leaves]
        self._head = next(at for at, (path, _) in enumerate(leaves) if f"{path}.".startswith(f"{model.head}."))

    def __call__(self, weights: dict[str, torch.Tensor], inputs: torch.Tensor, /) -> tuple[torch.Tensor, ...]:
        """Run all models."""
        models = len(inputs)
        block = min(models, block_size(self._module, inputs.shape[1:])) if self._fixed else models
        flow, features = _Flow(inputs, block), inputs
        for at, (layer, names) in enumerate(self._layers):
            if at == self._head and self._features:
                features = flow.rows()
            self._run(layer, {name: weights[where] for name, where in names.items()}, flow)
        return (features, flow.rows()) if self._features else (flow.rows(),)

    def _run(self, layer: nn.Module, own: dict[str, torch.Tensor], flow: "_Flow") -> None:
        """Let what flows through the layer, `own` its weights by the layer's names for them."""
        if isinstance(layer, nn.Linear):
            flow.set(_product(flow.rows(), own["weight"], own.get("bias"), flow.block))
        elif isinstance(layer, nn.Conv2d):
            flow.set(_convolved(layer, own, flow))
        elif isinstance(layer, nn.BatchNorm2d):
            flow.set(_normed(layer, own, flow))
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            flow.set([layer(maps) for maps in flow.maps()])
        elif isinstance(layer, nn.Flatten):
            flow.set(flow.rows().flatten(2))
        elif isinstance(layer, nn.Dropout):
            if layer.training and layer.p > 0:
                assert self._noise is not None
                rows = flow.rows()
                flow.set(rows * self._noise(rows.shape, layer.p) if layer.p < 1 else rows * 0)
        else:
            flow.apply(layer)


class _Flow:
    """What goes from layer to layer: rows (models, samples, ...), or for each block of models the maps.

    A block's maps are (samples, models x channels, height, width) with the channels last in memory.
    """

    def __init__(self, rows: torch.Tensor, block: int) -> None:
        self.block = block
        self._numbers: torch.Tensor | list[torch.Tensor] = rows

    def rows(self) -> torch.Tensor:
        if isinstance(self._numbers, list):
            # By `cat` for a single block too, so that gradients lie alike in memory for any number of them.
            self._numbers = torch.cat([maps.unflatten(1, (self.block, -1)).transpose(0, 1) for maps in self._numbers])
        return self._numbers

    def maps(self) -> list[torch.Tensor]:
        if isinstance(self._numbers, torch.Tensor):
            self._numbers = [_side_by_side(rows) for rows in self._numbers.split(self.block)]
        return self._numbers

    def maps_for(self, groups: int, extra: int) -> tuple[list[torch.Tensor], int, int]:
        """Return maps for a convolution, in how many groups, and how many channels of zeros each group has more.

        Where all models see the same, that goes in once and as it is.
        """
        if isinstance(self._numbers, list) or groups > 1:
            return self.maps(), groups * self.block, 0
        if self.block == len(self._numbers) and self._numbers.stride(0) == 0:
            return [_side_by_side(self._numbers[:1])], 1, 0
        return [_side_by_side(rows, extra) for rows in self._numbers.split(self.block)], self.block, extra

    def set(self, numbers: torch.Tensor | list[torch.Tensor]) -> None:
        self._numbers = numbers

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let a function of single numbers work on them as they lie."""
        numbers = self._numbers
        self._numbers = [function(maps) for maps in numbers] if isinstance(numbers, list) else function(numbers)


def _side_by_side(rows: torch.Tensor, extra: int = 0) -> torch.Tensor:
    """Return rows as the maps of one block, with `extra` channels of zeros after each model's.

    Not by `contiguous`: of a single channel or sample it may say that all is as it should be, while the layers after it
    take it for maps of the other kind.
    """
    models, samples, channels, height, width = rows.shape
    if rows.requires_grad or channels >= 8:
        last = F.pad(rows.permute(1, 3, 4, 0, 2), (0, extra)).reshape(-1)
    else:
        # The same, four times faster: an operation for each channel goes through a whole image at once.
        make = rows.new_zeros if extra else rows.new_empty
        places = make(samples, height, width, models, channels + extra)
        for model in range(models):
            for channel in range(channels):
                places[..., model, channel] = rows[model, :, channel]
        last = places
    return last.view(samples, height, width, models * (channels + extra)).movedim(-1, 1)


def _convolved(layer: nn.Conv2d, own: dict[str, torch.Tensor], flow: _Flow) -> list[torch.Tensor]:
    extra = int(layer.in_channels == 3 and own["weight"].device.type == "cpu" and _three_channels_are_slow())
    blocks, groups, added = flow.maps_for(layer.groups, extra)
    weights = [weight.flatten(0, 1) for weight in own["weight"].split(flow.block)]
    weights = [F.pad(weight, (0, 0, 0, 0, 0, added)) for weight in weights] if added else weights
    biases = [bias.flatten() for bias in own["bias"].split(flow.block)] if "bias" in own else [None] * len(blocks)
    return [
        F.conv2d(maps, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
        for maps, weight, bias in zip(blocks, weights, biases, strict=True)
    ]


def _three_channels_are_slow() -> bool:
    """Tell whether a convolution in groups of three input channels, as of colour images, is faster with a fourth.

    Milliseconds per model, forwards and backwards, 32 images of 32 x 32 pixels, 5 x 5 to 6 channels, in groups of 3 / 4
    input channels: AVX2 5.7 / 2.7, AVX-512 1.8 / 2.1. No other number of channels is so slow.
    """
    return torch.backends.cpu.get_cpu_capability() != "AVX512"


def _normed(layer: nn.BatchNorm2d, own: dict[str, torch.Tensor], flow: _Flow) -> list[torch.Tensor]:
    """Batch norm of a block's channels, if those of each model lie alike in vector registers; else of each model's."""
    together = flow.block if layer.num_features % ALIGNED == 0 else 1
    by_model = {name: iter(tensor.split(together)) for name, tensor in own.items()}
    written = ("running_mean", "running_var") if layer.training else ()  # through a view, then

    def norm(maps: torch.Tensor) -> torch.Tensor:
        each = {name: next(rows) for name, rows in by_model.items()}
        flat = {name: rows.view(-1) if name in written else rows.flatten() for name, rows in each.items()}
        mean, variance = flat.get("running_mean"), flat.get("running_var")
        training, momentum = layer.training or mean is None, layer.momentum or 0.0
        return F.batch_norm(maps, mean, variance, flat.get("weight"), flat.get("bias"), training, momentum, layer.eps)

    if together == flow.block:
        return [norm(maps) for maps in flow.maps()]
    normed = []
    for maps in flow.maps():
        models = maps.movedim(1, -1).unflatten(-1, (flow.block, -1)).unbind(-2)
        each = [norm(model.contiguous().movedim(-1, 1)).movedim(1, -1) for model in models]
        normed.append(torch.stack(each, dim=-2).flatten(-2).movedim(-1, 1))
    return normed


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> torch.Tensor:
    """A linear layer for each model, of shapes that make the bits independent of its place; see `aligned`."""
    samples, outputs = rows.shape[1:-1], weight.shape[1]
    flat, weight, bias = aligned(rows.flatten(1, -2), weight, bias)
    factors = zip(flat.split(block), weight.transpose(1, 2).split(block), strict=True)
    if bias is None:
        products = [torch.bmm(*pair) for pair in factors]
    else:
        shifts = bias[:, None].split(block)
        products = [torch.baddbmm(shift, *pair) for shift, pair in zip(shifts, factors, strict=True)]
    product = products[0] if len(products) == 1 else torch.cat(products)
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
