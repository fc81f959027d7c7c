"""The networks by name, built for the run's data and initialised by the seed.

The networks themselves are in `networks` and `residual`; the user's networks are handled in `own`. Which part of a
network is its head, and how its weights become a vector, is in `flat`. Nothing here trains.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from rayfl.config import ModelConfig
from rayfl.errors import InputError, closest, shown
from rayfl.models.blocks import Shape
from rayfl.models.networks import (
    char_lstm,
    digits_cnn,
    fedac_cnn,
    fedtsdp_cnn,
    mlp,
    thesis_batch_norm,
    thesis_three_dense,
)
from rayfl.models.own import build_own
from rayfl.models.residual import resnet9, resnet18
from rayfl.randomness import Purpose, global_generators_kept, seed_globals, torch_seed

#: Upper limits of model.options for networks of the zoo; `prepare` checks whether a network fits into memory.
_MOST_WIDTH = 1_000_000
_MOST_LAYERS = 100

_SMALL_INPUT = 3 * 224 * 224


def build_model(
    config: ModelConfig,
    input_shape: Shape,
    classes: int,
    vocabulary: int | None = None,
    seed: int = 0,
    index: int = 0,
) -> nn.Module:
    """Build the network that `config` names, for samples of `input_shape` (without the batch).

    Images are (channels, height, width). With a `vocabulary`, samples are sequences of character numbers. The
    initial weights depend only on `seed` and `index`; `index` numbers the different initial models of one run.

    >>> build_model(ModelConfig(name="mlp"), (1, 8, 8), classes=10).head
    Linear(in_features=200, out_features=10, bias=True)
    """
    with global_generators_kept():
        # Not torch.manual_seed: it would also reseed the GPUs, whose generators are not restored here.
        seed_globals(torch_seed(seed, Purpose.MODEL, index))
        if ":" in config.name:
            return build_own(config, input_shape, classes, vocabulary, index)
        return _build_from_zoo(config, input_shape, classes, vocabulary)


@dataclass(frozen=True)
class Architecture:
    """A network of the zoo and the kind of samples it takes."""

    build: Callable[..., nn.Module]
    takes: Literal["images", "numbers", "text"]
    """images: (channels, height, width); numbers: any shape, images too; text: sequences of characters."""
    smallest: int = 1
    """The smallest height and width of an image."""

    @property
    def options(self) -> dict[str, int | float]:
        """What model.options may change, with the defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


#: Every network by name. Those with batch norm on the last feature map need images of 16 x 16, so that this map has
#: several positions: with a single position, a batch of one sample has no variance and torch refuses to train.
ZOO: dict[str, Architecture] = {
    "digits_cnn": Architecture(digits_cnn, "images", smallest=4),
    "mlp": Architecture(mlp, "numbers"),
    "thesis_fashion_mnist": Architecture(thesis_batch_norm, "images", smallest=4),
    "thesis_cifar10": Architecture(thesis_three_dense, "images", smallest=16),
    "thesis_pathmnist": Architecture(thesis_three_dense, "images", smallest=16),
    "thesis_tissuemnist": Architecture(thesis_batch_norm, "images", smallest=4),
    "fedac_cnn": Architecture(fedac_cnn, "images", smallest=4),
    "fedtsdp_cnn": Architecture(fedtsdp_cnn, "images", smallest=6),
    "resnet9": Architecture(resnet9, "images", smallest=16),
    "resnet18": Architecture(resnet18, "images", smallest=16),
    "char_lstm": Architecture(char_lstm, "text"),
}


def wants_channels_last(config: ModelConfig, training: str) -> bool:
    """Return whether a network should store feature maps with the channels last; depends only on name and trainer.

    Speed-up of the loop trainer's step over the standard layout, one CPU thread, batch 32 / 10: thesis_fashion_mnist
    1.47 / 1.37, thesis_tissuemnist 1.45 / 1.37, digits_cnn 1.28 / 1.18, thesis_cifar10 1.13 / 1.08, fedac_cnn 1.16 /
    1.08, fedtsdp_cnn 1.08, resnet9 1.12 / 1.05, the others 1 within noise. Networks written by users are excluded: they
    may call `view`, which does not work on such maps.
    """
    return training == "loop" and config.name in ZOO


def large_parameters(config: ModelConfig, input_shape: Shape, classes: int, vocabulary: int | None) -> int | None:
    """Count the parameters of a network of the zoo without allocating them, if it may be large; else return None.

    With default options and small images, no network of the zoo is large, and building the first network on torch's
    meta device takes more than a second. A user's network is not built for this: its constructor may keep references
    to what it creates.
    """
    if config.name not in ZOO:
        return None
    defaults = ZOO[config.name].options
    wider = any(isinstance(v, int) and v > 8 * defaults.get(k, v) for k, v in config.options.items())
    if not wider and math.prod(input_shape) <= _SMALL_INPUT:
        return None
    with torch.device("meta"):
        module = build_model(config, input_shape, classes, vocabulary)
    return sum(parameter.numel() for parameter in module.parameters())


def _build_from_zoo(config: ModelConfig, input_shape: Shape, classes: int, vocabulary: int | None) -> nn.Module:
    if config.name not in ZOO:
        raise InputError(
            f"model.name={shown(config.name)} is not in the zoo{closest(config.name, list(ZOO))};"
            f" allowed: {', '.join(ZOO)}, or package.module:Class"
        )
    architecture = ZOO[config.name]
    fault = _misfit(architecture, input_shape, vocabulary)
    if fault is not None:
        fitting = next(n for n, a in ZOO.items() if _misfit(a, input_shape, vocabulary) is None)
        raise InputError(f"model.name={config.name} {fault}: use model.name={fitting}")
    _check_options(config.name, config.options, architecture.options)
    if architecture.takes == "text":
        return architecture.build(vocabulary, classes, **config.options)
    return architecture.build(input_shape, classes, **config.options)


def _misfit(architecture: Architecture, shape: Shape, vocabulary: int | None) -> str | None:
    """Return why the network cannot take such samples; None if it can."""
    has = "text" if vocabulary is not None else "images" if len(shape) == 3 else f"samples of shape {shape}"
    if architecture.takes == "text":
        return None if has == "text" else f"reads text (characters), the data has {has}"
    if has == "text":
        return f"reads {architecture.takes}, the data has text (characters)"
    if architecture.takes == "numbers":
        return None
    if has != "images":
        return f"reads images (channels, height, width), the data has {has}"
    if min(shape[1:]) < architecture.smallest:
        smallest = architecture.smallest
        return f"needs images of at least {smallest}x{smallest}, the data has {shape[1]}x{shape[2]}"
    return None


def _check_options(name: str, given: Mapping[str, Any], allowed: Mapping[str, int | float]) -> None:
    for key, value in given.items():
        if key not in allowed:
            names = f"it has {', '.join(allowed)}" if allowed else "it has no options"
            hint = closest(key, list(allowed))
            raise InputError(f"model.options.{key}={shown(value)}: model.name={name} has no such option{hint}; {names}")
        if isinstance(allowed[key], float):
            good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
            expected = "a number from 0 to below 1"
        else:
            most = _MOST_LAYERS if key == "layers" else _MOST_WIDTH
            good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
            expected = f"a whole number, at least 1 and at most {most}"
        if not good:
            raise InputError(f"model.options.{key}={shown(value)} must be {expected}, such as {allowed[key]}")
