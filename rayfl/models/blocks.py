"""Building blocks of networks: named sequences, dense layers, and a head of the right width."""

import torch
from torch import nn

Shape = tuple[int, ...]


def sequence(**modules: nn.Module) -> nn.Sequential:
    """Return the modules as a sequence, each under its name."""
    made = nn.Sequential()
    for name, module in modules.items():
        made.add_module(name, module)
    return made


def with_dense(body: nn.Sequential, input_shape: Shape, hidden: list[int], classes: int) -> nn.Module:
    """Add hidden dense layers of these widths, and a head."""
    for i, units in enumerate(hidden, start=1):
        body.add_module(f"dense{i}", nn.Linear(output_width(body, input_shape), units))
        body.add_module(f"dense_relu{i}", nn.ReLU())
    return with_head(body, input_shape, classes)


def with_head(body: nn.Sequential, input_shape: Shape, classes: int) -> nn.Module:
    """Add a dense layer with one output per class."""
    body.add_module("head", nn.Linear(output_width(body, input_shape), classes))
    return body


def output_width(body: nn.Module, input_shape: Shape) -> int:
    """Return how many numbers per sample `body` outputs, by running it once."""
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, *input_shape)).shape[1]
    body.train()
    return int(width)
