"""A convolution, ReLU and 2 x 2 max pooling as one layer, for networks whose first maps are few and large.

PyTorch's kernels for a CPU are made for many channels. With 6 of them a step of thesis_cifar10 goes half its time
through the first map alone: a convolution that fills vectors of 8 badly, then pooling that walks it number by number.
"""

from typing import Any, TypeGuard

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d

_aten = torch.ops.aten

#: Wider convolutions fill the vectors by themselves, and pay for the larger kernel. Milliseconds per step of 32, one
#: thread, apart / pooled: thesis_cifar10 (6 channels) 4.7 / 3.9, its second convolution too (16) 5.7; digits_cnn (16)
#: 1.4 / 1.9; fedac_cnn (32) 62 / 65.
_MOST_CHANNELS = 8


def pool_at_once(module: nn.Module) -> bool:
    """Put such a layer in where a convolution of few channels, ReLU and 2 x 2 max pooling follow each other.

    Where there is one, wider convolutions that are followed so are turned for the pooling. In place; names, shapes and
    order of the parameters stay. Returns whether there was such a place; if not, nothing has changed.

    >>> def convolution(*sizes):
    ...     return nn.Conv2d(*sizes), nn.ReLU(), nn.MaxPool2d(2)
    >>> network = nn.Sequential(*convolution(3, 6, 5), *convolution(6, 16, 5), nn.Flatten())
    >>> pool_at_once(network), [type(layer).__name__ for layer in network if type(layer) is not nn.Identity]
    (True, ['PooledConv2d', 'TurnedConv2d', 'Flatten'])
    """
    found = [
        (layers, at, convolution)
        for layers in module.modules()
        if type(layers) is nn.Sequential
        for at in range(len(layers) - 2)
        if _is_plain(convolution := layers[at]) and type(layers[at + 1]) is nn.ReLU and _is_two_by_two(layers[at + 2])
    ]
    if not any(convolution.out_channels <= _MOST_CHANNELS for _, _, convolution in found):
        return False
    for layers, at, convolution in found:
        narrow = convolution.out_channels <= _MOST_CHANNELS
        layers[at] = PooledConv2d(convolution) if narrow else TurnedConv2d(convolution)
        layers[at + 1] = layers[at + 2] = nn.Identity()
    return True


class _ConvolutionAndPooling(nn.Module):
    """max_pool2d(relu(conv2d(x, weight, bias)), 2), with the weight and bias of a layer that is there."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert convolution.bias is not None
        assert not isinstance(convolution.padding, str)
        self.weight, self.bias, self.padding = convolution.weight, convolution.bias, convolution.padding


class PooledConv2d(_ConvolutionAndPooling):
    """All at once, for few channels.

    The four places that go into one maximum become four times as many channels of a convolution with stride 2, whose
    kernels are the given one in the four corners of a larger one. Their maximum then needs no walk, and bias and ReLU,
    which do not change the order of numbers, come after it. Where places tie, the first gets the gradient, as in
    max_pool2d.
    """

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pooled maps, half as high and wide."""
        if torch.is_grad_enabled():
            return _PooledConvolution.apply(inputs, self.weight, self.bias, self.padding)
        *_, output = _pooled(inputs, _in_corners(self.weight), self.bias, self.padding)
        return output


class TurnedConv2d(_ConvolutionAndPooling):
    """One after the other, on maps turned so that channels lie last: pooling then takes many numbers at once.

    The convolution itself is faster on maps that are not. ReLU comes after pooling, where it has a quarter of the
    numbers. That changes nothing: it keeps their order, and where the greatest is not above 0 no gradient passes either
    way.
    """

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the pooled maps, half as high and wide, in their usual order again."""
        maps = conv2d(inputs, self.weight, self.bias, padding=self.padding)
        return max_pool2d(maps.contiguous(memory_format=torch.channels_last), 2).relu().contiguous()


class _PooledConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, padding: tuple[int, ...]
    ) -> torch.Tensor:
        kernels = _in_corners(weight)
        left, right, above, below, output = _pooled(inputs, kernels, bias, padding)
        # Differences instead of masks of booleans: what follows is arithmetic on floats, several times faster.
        ctx.save_for_backward(inputs, weight, kernels, right - left, below - above, output)
        ctx.padding = padding
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight, kernels, righter, lower, output = ctx.saved_tensors
        gradient = _where_positive(gradients[0], output)
        to_rows = torch.empty_like(righter)
        above, below = to_rows.unbind(1)
        torch.sub(gradient, _where_positive(gradient, lower, below), out=above)
        samples, rows, channels, height, width = to_rows.shape
        to_places = to_rows.new_empty(samples, rows, 2, channels, height, width)
        left, right = to_places.unbind(2)
        torch.sub(to_rows, _where_positive(to_rows, righter, right), out=left)
        wanted = [ctx.needs_input_grad[0], True, False]
        to_maps = to_places.view(samples, -1, height, width)
        to_inputs, to_kernels, _ = _aten.convolution_backward(
            to_maps, inputs, kernels, None, [2, 2], ctx.padding, [1, 1], False, [0, 0], 1, wanted
        )
        return to_inputs, _out_of_corners(to_kernels, weight), gradient.sum((0, 2, 3)), None


def _pooled(
    inputs: torch.Tensor, kernels: torch.Tensor, bias: torch.Tensor, padding: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """Return the left and the right places of both rows, the greater ones above and below, and the output."""
    places = conv2d(inputs, kernels, stride=2, padding=padding).contiguous()
    samples, _, height, width = places.shape
    left, right = places.view(samples, 2, 2, -1, height, width).unbind(2)
    above, below = torch.maximum(left, right).unbind(1)
    return left, right, above, below, torch.maximum(above, below).add_(bias.view(-1, 1, 1)).relu_()


def _in_corners(weight: torch.Tensor) -> torch.Tensor:
    """Return the kernels (4 out, in, k + 1, k + 1): upper left, upper right, lower left, lower right."""
    out, channels, height, width = weight.shape
    kernels = weight.new_zeros(4 * out, channels, height + 1, width + 1)
    row, block = width + 1, kernels.numel() // 4
    corners = (2 * block + row, block + 1, *kernels.stride())
    kernels.as_strided((2, 2, *weight.shape), corners).copy_(weight)
    return kernels


def _out_of_corners(kernels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the weight from that of the kernels: the sum over the corners.

    Number by number from each corner on, so that it is four long rows; what is between the kernels is left out at last.
    """
    kernels = kernels.contiguous()
    row, block = kernels.shape[3], kernels.numel() // 4
    rows = kernels.as_strided((2, 2, block - row - 1), (2 * block + row, block + 1, 1))
    return rows.sum((0, 1)).as_strided(weight.shape, kernels.stride())


def _where_positive(values: torch.Tensor, sign: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return `values` where `sign` is above 0, else 0."""
    if out is None:
        return _aten.threshold_backward(values, sign, 0)
    return _aten.threshold_backward.grad_input(values, sign, 0, grad_input=out)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        type(layer) is nn.Conv2d
        and layer.bias is not None
        and not isinstance(layer.padding, str)
        and (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
    )


def _is_two_by_two(layer: nn.Module) -> bool:
    plain = nn.MaxPool2d(2)
    same = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    return type(layer) is nn.MaxPool2d and all(getattr(layer, name) == getattr(plain, name) for name in same)
