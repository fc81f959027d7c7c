"""Residual networks, ResNet-9 and ResNet-18 for small images; see `networks` for the others."""

import torch
from torch import nn

from rayfl.models.blocks import Shape, sequence, with_head


def resnet9(input_shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """David Page's ResNet for fast CIFAR-10 training, without its scaling of the logits by 1/8."""
    body = sequence(
        stem=_convolution(input_shape[0], width),
        stage1=sequence(
            convolution=_convolution(width, 2 * width, pool=True),
            residual=Residual(
                sequence(first=_convolution(2 * width, 2 * width), second=_convolution(2 * width, 2 * width))
            ),
        ),
        stage2=_convolution(2 * width, 4 * width, pool=True),
        stage3=sequence(
            convolution=_convolution(4 * width, 8 * width, pool=True),
            residual=Residual(
                sequence(first=_convolution(8 * width, 8 * width), second=_convolution(8 * width, 8 * width))
            ),
        ),
        pool=nn.AdaptiveMaxPool2d(1),
        flatten=nn.Flatten(),
    )
    return with_head(body, input_shape, classes)


def resnet18(input_shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """ResNet-18 for small images: a 3 x 3 stem without max pooling, then four stages of two basic blocks."""
    stages = {
        f"stage{i + 1}": sequence(
            block1=_basic_block(width * 2 ** max(i - 1, 0), width * 2**i, stride=1 if i == 0 else 2),
            block2=_basic_block(width * 2**i, width * 2**i, stride=1),
        )
        for i in range(4)
    }
    body = sequence(
        stem=_convolution(input_shape[0], width),
        **stages,
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return with_head(body, input_shape, classes)


class Residual(nn.Module):
    """A branch and a shortcut: activation(shortcut(x) + branch(x)); by default x + branch(x)."""

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the branch and the shortcut."""
        return self.activation(self.shortcut(inputs) + self.branch(inputs))


def _convolution(channels_in: int, channels_out: int, pool: bool = False) -> nn.Sequential:
    block = sequence(
        conv=nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(channels_out),
        relu=nn.ReLU(),
    )
    if pool:
        block.add_module("pool", nn.MaxPool2d(2))
    return block


def _basic_block(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    branch = sequence(
        conv1=nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        norm1=nn.BatchNorm2d(channels_out),
        relu=nn.ReLU(),
        conv2=nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        norm2=nn.BatchNorm2d(channels_out),
    )
    shortcut = None
    if stride != 1 or channels_in != channels_out:
        shortcut = sequence(
            conv=nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
            norm=nn.BatchNorm2d(channels_out),
        )
    return Residual(branch, shortcut, nn.ReLU())
