"""The networks by name, and a user's own by import path; built for the data at hand, initialised by the seed.

Which part of a network is its head, and how its weights become a vector, is in `flat`. Nothing here trains.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rayfl.config import ModelConfig
from rayfl.errors import InputError, closest, shown
from rayfl.models.outside import Outside
from rayfl.own_code import imported, reason
from rayfl.randomness import Purpose, global_generators_kept, seed_globals, torch_seed

Shape = tuple[int, ...]

#: The most that model.options may ask of a network of the zoo; what fits into memory is checked by `prepare`.
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
    initial weights depend on `seed` and `index` alone; `index` tells K initial models apart.

    >>> build_model(ModelConfig(name="mlp"), (1, 8, 8), classes=10).head
    Linear(in_features=200, out_features=10, bias=True)
    """
    with global_generators_kept():
        # Not torch.manual_seed: it would reseed the GPUs too, and they would not be put back.
        seed_globals(torch_seed(seed, Purpose.MODEL, index))
        if ":" in config.name:
            return _build_imported(config, input_shape, classes, vocabulary)
        return _build_from_zoo(config, input_shape, classes, vocabulary)


# --- the networks ---------------------------------------------------------------
#
# A network is a function of the input's shape and the number of classes; its keyword arguments are what
# model.options can change. The last fully connected layer is called `head` in all of them.


def digits_cnn(input_shape: Shape, classes: int, *, channels: int = 16) -> nn.Module:
    """Two small convolutions, for scikit-learn's 8 x 8 digits: about 6,000 parameters."""
    body = _sequence(
        conv1=nn.Conv2d(input_shape[0], channels, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(channels, 2 * channels, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return _with_head(body, input_shape, classes)


def mlp(input_shape: Shape, classes: int, *, hidden: int = 200) -> nn.Module:
    """One hidden layer."""
    return _with_dense(_sequence(flatten=nn.Flatten()), input_shape, [hidden], classes)


def thesis_batch_norm(input_shape: Shape, classes: int) -> nn.Module:
    """Tables A.1 (Fashion-MNIST) and A.4 (TissueMNIST) of the thesis.

    A.1 prints 16 channels for the second batch norm, after a convolution with 32: 32 is meant. A.4 leaves out
    the padding of the convolutions, but gives the classifier 7*7*32 inputs, which takes padding 2, as in A.1.
    """
    body = _sequence(
        conv1=nn.Conv2d(input_shape[0], 16, 5, padding=2),
        norm1=nn.BatchNorm2d(16),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 5, padding=2),
        norm2=nn.BatchNorm2d(32),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return _with_head(body, input_shape, classes)


def thesis_three_dense(input_shape: Shape, classes: int) -> nn.Module:
    """Tables A.2 (CIFAR-10) and A.3 (PathMNIST) of the thesis.

    Both print 400 inputs of the first dense layer: right for 32 x 32 images, PathMNIST's 28 x 28 give 256.
    """
    body = _sequence(
        conv1=nn.Conv2d(input_shape[0], 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return _with_dense(body, input_shape, [120, 84], classes)


def fedac_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """FedAC's network, section 5.1: two convolutions, three dense layers.

    The paper gives no widths, only "over 4,700,000" weights in all; these widths have 4,778,954 on CIFAR-10.
    """
    body = _sequence(
        conv1=nn.Conv2d(input_shape[0], 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    return _with_dense(body, input_shape, [1024, 512], classes)


def fedtsdp_cnn(
    input_shape: Shape, classes: int, *, hidden: int = 512, dropout1: float = 0.25, dropout2: float = 0.5
) -> nn.Module:
    """FedTSDP's CNN, section 4.1; the paper says nothing of padding (none) and pooling (one)."""
    body = _sequence(
        conv1=nn.Conv2d(input_shape[0], 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout1=nn.Dropout(dropout1),
        flatten=nn.Flatten(),
    )
    body.add_module("dense1", nn.Linear(_width(body, input_shape), hidden))
    body.add_module("relu3", nn.ReLU())
    body.add_module("dropout2", nn.Dropout(dropout2))
    return _with_head(body, input_shape, classes)


def resnet9(input_shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """David Page's ResNet for fast CIFAR-10 training, without its scaling of the logits by 1/8."""
    body = _sequence(
        stem=_convolution(input_shape[0], width),
        stage1=_sequence(
            convolution=_convolution(width, 2 * width, pool=True),
            residual=Residual(
                _sequence(first=_convolution(2 * width, 2 * width), second=_convolution(2 * width, 2 * width))
            ),
        ),
        stage2=_convolution(2 * width, 4 * width, pool=True),
        stage3=_sequence(
            convolution=_convolution(4 * width, 8 * width, pool=True),
            residual=Residual(
                _sequence(first=_convolution(8 * width, 8 * width), second=_convolution(8 * width, 8 * width))
            ),
        ),
        pool=nn.AdaptiveMaxPool2d(1),
        flatten=nn.Flatten(),
    )
    return _with_head(body, input_shape, classes)


def resnet18(input_shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """ResNet-18 for small images: a 3 x 3 stem without max pooling, then four stages of two basic blocks."""
    stages = {
        f"stage{i + 1}": _sequence(
            block1=_basic_block(width * 2 ** max(i - 1, 0), width * 2**i, stride=1 if i == 0 else 2),
            block2=_basic_block(width * 2**i, width * 2**i, stride=1),
        )
        for i in range(4)
    }
    body = _sequence(
        stem=_convolution(input_shape[0], width),
        **stages,
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return _with_head(body, input_shape, classes)


class CharLSTM(nn.Module):
    """Characters embedded, two LSTM layers, and a dense layer on the last state that says what comes next."""

    def __init__(self, vocabulary: int, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits of the next character: (batch, window) whole numbers in, (batch, classes) out."""
        states, _ = self.lstm(self.embedding(characters))
        return self.head(states[:, -1])


def char_lstm(vocabulary: int, classes: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Two-layer LSTM over characters."""
    return CharLSTM(vocabulary, classes, embedding, hidden, layers)


class Residual(nn.Module):
    """A branch beside a shortcut: activation(shortcut(x) + branch(x)); by default the branch added to x."""

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the two ways."""
        return self.activation(self.shortcut(inputs) + self.branch(inputs))


def _convolution(channels_in: int, channels_out: int, pool: bool = False) -> nn.Sequential:
    block = _sequence(
        conv=nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(channels_out),
        relu=nn.ReLU(),
    )
    if pool:
        block.add_module("pool", nn.MaxPool2d(2))
    return block


def _basic_block(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    branch = _sequence(
        conv1=nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        norm1=nn.BatchNorm2d(channels_out),
        relu=nn.ReLU(),
        conv2=nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        norm2=nn.BatchNorm2d(channels_out),
    )
    shortcut = None
    if stride != 1 or channels_in != channels_out:
        shortcut = _sequence(
            conv=nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
            norm=nn.BatchNorm2d(channels_out),
        )
    return Residual(branch, shortcut, nn.ReLU())


def _sequence(**modules: nn.Module) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence


def _with_dense(body: nn.Sequential, input_shape: Shape, hidden: list[int], classes: int) -> nn.Module:
    for i, units in enumerate(hidden, start=1):
        body.add_module(f"dense{i}", nn.Linear(_width(body, input_shape), units))
        body.add_module(f"dense_relu{i}", nn.ReLU())
    return _with_head(body, input_shape, classes)


def _with_head(body: nn.Sequential, input_shape: Shape, classes: int) -> nn.Module:
    body.add_module("head", nn.Linear(_width(body, input_shape), classes))
    return body


def _width(body: nn.Module, input_shape: Shape) -> int:
    """How many numbers per sample come out of `body`, by trying it."""
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, *input_shape)).shape[1]
    body.train()
    return int(width)


# --- choosing and checking ------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """A network of the zoo and what it can be fed with."""

    build: Callable[..., nn.Module]
    takes: Literal["images", "numbers", "text"]
    """images: (channels, height, width); numbers: any shape, images too; text: sequences of characters."""
    smallest: int = 1
    """The least height and width of an image."""

    @property
    def options(self) -> dict[str, int | float]:
        """What model.options may change, with the defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


#: Every network by name. Those with batch norm on the last feature map ask for 16 x 16, so that this map has
#: several positions: on a single one, a batch of one sample has no variance and torch refuses to train.
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
    """Tell whether a network's maps should lie in memory with the channels last: by its name and the trainer alone.

    The loop trainer's step against the plain layout, one thread of a CPU, batch 32 / 10: thesis_fashion_mnist 1.47 /
    1.37 times faster, thesis_tissuemnist 1.45 / 1.37, digits_cnn 1.28 / 1.18, thesis_cifar10 1.13 / 1.08, fedac_cnn
    1.16 / 1.08, fedtsdp_cnn 1.08, resnet9 1.12 / 1.05, the others within noise of 1. Networks of users' own may call
    `view`, which such maps lack.
    """
    return training == "loop" and config.name in ZOO


def large_parameters(config: ModelConfig, input_shape: Shape, classes: int, vocabulary: int | None) -> int | None:
    """Count the parameters of a network of the zoo without allocating any, if it may be a large one; else None.

    With its default options and small images no network of the zoo is large, and torch takes more than a second for
    its first network without memory. A user's own network is not asked: it may keep what its constructor makes.
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
    """Say why the network cannot take such samples; None if it can."""
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


def _build_imported(config: ModelConfig, input_shape: Shape, classes: int, vocabulary: int | None) -> nn.Module:
    make = _import(config.name)
    known = {"input_shape": input_shape, "classes": classes, "vocabulary": vocabulary}
    try:
        signature = inspect.signature(make)
    except ValueError:  # classes written in C may have none
        signature = inspect.Signature()
    arguments = {k: v for k, v in known.items() if k in signature.parameters} | config.options
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"model.options={shown(config.options)} do not fit model.name={config.name}: {error};"
            f" its arguments are {signature}"
        ) from None
    try:
        module = make(**arguments)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"model.name={config.name} with model.options={shown(config.options)} cannot be built: {reason(error)}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model.name={config.name} gives a {type(module).__name__}: name a subclass of torch.nn.Module"
        )
    _try_out(module, config.name, input_shape, classes, vocabulary)
    return module


def _import(path: str) -> Callable[..., Any]:
    found: Any = imported("model.name", path, "class", lambda v: inspect.isclass(v) and issubclass(v, nn.Module))
    if not callable(found):
        raise InputError(f"model.name={path} is a {type(found).__name__}: name a subclass of torch.nn.Module")
    return found


def _try_out(module: nn.Module, name: str, input_shape: Shape, classes: int, vocabulary: int | None) -> None:
    """Run a batch of zeros through: tells a wrong output before the first round, and settles lazy modules."""
    kind = torch.long if vocabulary is not None else torch.float32
    batch = torch.zeros(3, *input_shape, dtype=kind)
    training = module.training
    lazy = any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers()))
    before = None if lazy else Outside(module)
    try:
        with torch.no_grad():
            output = module.eval()(batch)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"model.name={name} fails on a batch of shape {tuple(batch.shape)}: {reason(error)}"
        ) from error
    module.train(training)
    if before is not None:
        before.reset()  # it counts as never called
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if got != (3, classes):
        raise InputError(
            f"model.name={name} gives {got} for a batch of 3, not (3, {classes}): its last layer must have"
            " one output per class"
        )
    unsettled = [n for n, p in module.named_parameters() if is_lazy(p)]
    if unsettled:
        raise InputError(f"model.name={name} never uses its lazy parameters {', '.join(unsettled)}: remove them")
