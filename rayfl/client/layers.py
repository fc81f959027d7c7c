"""Runs several models of one network at once, layer by layer.

This is for networks that are a sequence of plain layers. Other networks use `vmap`, which has to go through Python for
each operation and cannot choose the memory layout of feature maps. Here, the feature maps of several models are stored
as those of one network, with the channels of all models side by side and last in memory: a convolution becomes a
grouped convolution, and pooling processes many numbers at once.

Libraries may sum in another order when a call has another number of models. With `fixed`, a model's results must not
depend on the number of other models: every matrix product, convolution and batch norm is then called for a block of
models whose size depends only on the network's inputs. All other layers compute each number from one model's numbers
only, in the same way for any number of models.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from rayfl.client.layer_types import PLAIN
from rayfl.models import FlatModel

#: Rows start at multiples of this many float32 numbers (64 bytes).
ALIGNED = 16


def is_plain(module: nn.Module) -> bool:
    """Return whether a network is a sequence of layers that this module knows.

    >>> is_plain(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)))
    True
    >>> is_plain(nn.Sequential(nn.LSTM(2, 2)))
    False
    """
    return all(
        type(layer) in PLAIN
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and getattr(layer, "padding_mode", "zeros") == "zeros"
        and not getattr(layer, "return_indices", False)
        and (getattr(layer, "start_dim", 1), getattr(layer, "end_dim", -1)) == (1, -1)
        for _, layer in _leaves(module)
    )


def block_size(module: nn.Module, inputs: torch.Size) -> int:
    """Return how many models one call computes; it depends only on the network and its input size (samples, ...).

    More models per call are faster, especially with tiny feature maps; but a single client then costs as much as a
    whole block.
    """
    has_large_maps = any(isinstance(layer, nn.Conv2d) for layer in module.modules()) and inputs[-2:].numel() > 256
    return 2 if has_large_maps else 4


class PlainLayers:
    """A plain network, called with the weights of several models; returns their logits.

    The result is a tuple (logits,) or, with `features`, (inputs of the head, logits). Weights are given by their names
    in the layout, each (models, *shape), and inputs are (models, samples, ...); inputs that all models share are
    expanded, not repeated. Layers are in training or eval mode as those of the network at the time of the call. `noise`
    draws the factors for dropout, for all models. With `fixed`, the number of models must be one or a multiple of
    `block_size`.
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
        """Run one layer on the flow; `own` has its weights by the layer's names for them."""
        if isinstance(layer, nn.Linear):
            flow.set_rows(_product(flow.rows(), own["weight"], own.get("bias"), flow.block))
        elif isinstance(layer, nn.Conv2d):
            _convolve(layer, own, flow)
        elif isinstance(layer, nn.BatchNorm2d):
            _normalise(layer, own, flow)
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            flow.pool(layer)
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
    """The numbers between two layers: rows (models, samples, ...), or a list of maps, each for a few models.

    Maps are (samples, models x channels, height, width) with the channels last in memory. A model's channels may be
    followed by channels of zeros, which fill them up to a whole number of vector registers.
    """

    def __init__(self, rows: torch.Tensor, block: int) -> None:
        self.block = block
        self._numbers: torch.Tensor | list[torch.Tensor] = rows
        self._together, self._zeros = block, 0

    def rows(self) -> torch.Tensor:
        if isinstance(self._numbers, list):
            each = [maps.unflatten(1, (self._together, -1)).transpose(0, 1) for maps in self._numbers]
            each = [rows[:, :, : -self._zeros] for rows in each] if self._zeros else each
            # `cat` even for a single block, so that gradients have the same memory layout for any number of blocks.
            self._numbers = torch.cat(each)
        return self._numbers

    def maps_of(self, together: int, with_zeros: bool = False) -> tuple[list[torch.Tensor], int]:
        """Return maps of `together` models each, and their channels of zeros per model (0 unless `with_zeros`)."""
        if isinstance(self._numbers, list) and self._zeros and not with_zeros:
            self.set_rows(self.rows())
        if isinstance(self._numbers, torch.Tensor):
            return [_side_by_side(rows) for rows in self._numbers.split(together)], 0
        maps = self._numbers
        if self._together < together:
            size = together // self._together
            maps = [torch.cat(maps[at : at + size], dim=1) for at in range(0, len(maps), size)]
        elif self._together > together:
            parts = [part for whole in maps for part in whole.movedim(1, -1).chunk(self._together // together, -1)]
            maps = [part.contiguous().movedim(-1, 1) for part in parts]
        return maps, self._zeros

    def shared_inputs(self) -> torch.Tensor | None:
        """Return the inputs as the maps of one model, if all models have the same inputs; else None."""
        rows = self._numbers
        if isinstance(rows, torch.Tensor) and len(rows) == self.block and rows.stride(0) == 0:
            return _side_by_side(rows[:1])
        return None

    def set_rows(self, rows: torch.Tensor) -> None:
        self._numbers = rows

    def set_maps(self, maps: list[torch.Tensor], together: int, zeros: int = 0) -> None:
        self._numbers, self._together, self._zeros = maps, together, zeros

    def pool(self, layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply pooling to the maps, however many models each of them has."""
        if isinstance(self._numbers, torch.Tensor):
            self.set_maps(self.maps_of(self.block)[0], self.block)
        numbers = self._numbers[0]
        faster = numbers.device.type == "cpu" and not torch.is_grad_enabled() and _pools_by_two(layer)
        self.apply(_maximum_of_four if faster else layer)

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply a function to all numbers in their current layout; it must turn zeros into zeros."""
        numbers = self._numbers
        self._numbers = [function(maps) for maps in numbers] if isinstance(numbers, list) else function(numbers)


def _pools_by_two(layer: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether a layer takes the maximum of each square of 2 x 2, without padding."""
    if not isinstance(layer, nn.MaxPool2d) or layer.ceil_mode:
        return False
    wanted = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}
    return all(getattr(layer, name) in (number, (number, number)) for name, number in wanted.items())


def _maximum_of_four(maps: torch.Tensor) -> torch.Tensor:
    """Return what MaxPool2d(2) returns, when no gradient is needed: MaxPool2d also finds where each maximum is.

    Milliseconds for 125 samples with 8 channels and 28 x 28 pixels: 0.12 with MaxPool2d, 0.03 here.
    """
    height, width = (size // 2 * 2 for size in maps.shape[-2:])
    rows = [maps[..., begin:height:2, :width] for begin in range(2)]
    upper, lower = (torch.maximum(row[..., ::2], row[..., 1::2]) for row in rows)
    return torch.maximum(upper, lower)


def _side_by_side(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as maps.

    `contiguous` cannot be used here: with a single channel or sample it may change nothing, although the next layers
    then treat the maps as having the other memory layout.
    """
    models, samples, channels, height, width = rows.shape
    if rows.requires_grad or channels >= 8:
        last = rows.permute(1, 3, 4, 0, 2).reshape(-1)
    else:
        # The same result, but faster: one operation per channel copies whole images.
        last = rows.new_empty(samples, height, width, models, channels)
        for model in range(models):
            for channel in range(channels):
                last[..., model, channel] = rows[model, :, channel]
    return last.view(samples, height, width, models * channels).movedim(-1, 1)


def _convolve(layer: nn.Conv2d, own: dict[str, torch.Tensor], flow: _Flow) -> None:
    """Convolve all models as one grouped convolution; on AVX2, in the shapes for which the kernels are fastest.

    Measured on AVX2, milliseconds per model, forward and backward, 32 images of 32 x 32 pixels. A 5 x 5 convolution to
    6 channels: 3.9 in groups of 3 input channels, because the weight gradient then has no optimised kernel; 2.2 with
    one model at a time; 1.5 with 8 channels instead of 6, two of them zeros. The next convolution, to 16 channels in
    groups: 1.8 from 6 channels, 1.5 from 8.
    """
    weight, bias = own["weight"], own.get("bias")

    def convolve(maps: torch.Tensor, filters: torch.Tensor, shift: torch.Tensor | None, groups: int) -> torch.Tensor:
        return F.conv2d(maps, filters, shift, layer.stride, layer.padding, layer.dilation, groups)

    shared = flow.shared_inputs() if layer.groups == 1 else None
    if shared is not None:
        shift = None if bias is None else bias.flatten()
        flow.set_maps([convolve(shared, weight.flatten(0, 1), shift, 1)], flow.block)
        return
    avx2 = layer.groups == 1 and weight.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    together = 1 if avx2 and layer.in_channels == 3 else flow.block
    maps, zeros_in = flow.maps_of(together, with_zeros=layer.groups == 1)
    zeros_out = -layer.out_channels % 8 if avx2 and layer.out_channels % 8 >= 5 else 0
    weights, biases = weight.split(together), [None] * len(maps) if bias is None else bias.split(together)
    if zeros_in or zeros_out:  # pad each block separately, so that none begins in the middle of a cache line
        weights = [F.pad(rows, (0, 0, 0, 0, 0, zeros_in, 0, zeros_out)) for rows in weights]
        biases = [None if rows is None else F.pad(rows, (0, zeros_out)) for rows in biases]
    filters = [rows.flatten(0, 1) for rows in weights]
    shifts = [None if rows is None else rows.flatten() for rows in biases]
    each = zip(maps, filters, shifts, strict=True)
    flow.set_maps([convolve(*one, layer.groups * together) for one in each], together, zeros_out)


def _normalise(layer: nn.BatchNorm2d, own: dict[str, torch.Tensor], flow: _Flow) -> None:
    """Batch norm for a whole block, if each model's channels fill whole vector registers; else model by model."""
    together = flow.block if layer.num_features % ALIGNED == 0 else 1
    by_model = {name: iter(tensor.split(together)) for name, tensor in own.items()}
    written = ("running_mean", "running_var") if layer.training else ()  # updated in place: must be views

    def norm(maps: torch.Tensor) -> torch.Tensor:
        each = {name: next(rows) for name, rows in by_model.items()}
        flat = {name: rows.view(-1) if name in written else rows.flatten() for name, rows in each.items()}
        mean, variance = flat.get("running_mean"), flat.get("running_var")
        training, momentum = layer.training or mean is None, layer.momentum or 0.0
        return F.batch_norm(maps, mean, variance, flat.get("weight"), flat.get("bias"), training, momentum, layer.eps)

    flow.set_maps([norm(maps) for maps in flow.maps_of(together)[0]], together)


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> torch.Tensor:
    """A linear layer for each model, padded so that a model's bits do not depend on its place; see `aligned`."""
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
    """Return the arguments of F.linear, padded with zeros where a result's bits would depend on its row.

    Padding may add outputs. It is needed because MKL's order of summation depends on the operands' addresses (modulo 16
    bytes on the CPU where this was measured). In stacks of inputs, outputs and gradients, all rows are aligned equally
    only if the rows' sizes are multiples of that number of bytes.
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
    """Yield the layers in the order of their calls; a layer that is called twice is yielded twice."""
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for name, child in module._modules.items():  # named_children would leave out repeated modules
        assert child is not None
        yield from _leaves(child, f"{path}.{name}" if path else name)


def _pooled_first(leaves: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Swap each ReLU with the max pooling that directly follows it.

    The ReLU then has fewer numbers to process, and the result is the same: a ReLU keeps the order of numbers, and where
    the largest number is not above 0, no gradient passes in either order.
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
