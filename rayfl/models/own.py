"""The user's own network: by import path, or a class or a module that a Python program gave to `rayfl.run`."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rayfl.config import ModelConfig
from rayfl.errors import InputError, shown
from rayfl.models.blocks import Shape
from rayfl.models.outside import Outside
from rayfl.own_code import imported, reason


def build_own(config: ModelConfig, input_shape: Shape, classes: int, vocabulary: int | None, index: int) -> nn.Module:
    """Build the network that an import path or the name of a Python object refers to, and try it out."""
    make: Any = imported("model.name", config.name, "class", lambda v: inspect.isclass(v) and issubclass(v, nn.Module))
    if isinstance(make, nn.Module):
        module = _copy_of(make, config, index)
    elif callable(make):
        known = {"input_shape": input_shape, "classes": classes, "vocabulary": vocabulary}
        module = _called(make, config, known)
    else:
        raise InputError(f"model.name={config.name} is a {type(make).__name__}: name a subclass of torch.nn.Module")
    _try_out(module, config.name, input_shape, classes, vocabulary)
    return module


def _called(make: Callable[..., Any], config: ModelConfig, known: dict[str, Any]) -> nn.Module:
    """Call a class or a function with model.options, and with those facts about the data that it takes as arguments."""
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
    return module


def _copy_of(given: nn.Module, config: ModelConfig, index: int) -> nn.Module:
    """Return a copy of a given network. Its weights are used as the initial ones, so pretrained weights stay.

    Methods that start with several models need more initialisations; these are drawn with the run's seed, by the
    layers' own `reset_parameters`.
    """
    if config.options:
        raise InputError(
            f"model.options={shown(config.options)}: model.name={config.name} is a network, which is built already:"
            " leave the options out, or give the class"
        )
    module = deepcopy(given).cpu().train()
    if index == 0:
        return module
    for part in module.modules():
        if any(True for _ in part.parameters(recurse=False)):
            if not callable(getattr(part, "reset_parameters", None)):
                raise InputError(
                    f"model.name={config.name}: the method begins with several initial models, and the layer"
                    f" {type(part).__name__} has no reset_parameters() to draw other weights: give the network's class"
                )
            part.reset_parameters()  # type: ignore[operator]
    return module


def _try_out(module: nn.Module, name: str, input_shape: Shape, classes: int, vocabulary: int | None) -> None:
    """Run a batch of zeros: this finds a wrong output shape before the first round, and initialises lazy modules."""
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
        before.reset()  # as if it had never been called
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if got != (3, classes):
        raise InputError(
            f"model.name={name} gives {got} for a batch of 3, not (3, {classes}): its last layer must have"
            " one output per class"
        )
    unsettled = [n for n, p in module.named_parameters() if is_lazy(p)]
    if unsettled:
        raise InputError(f"model.name={name} never uses its lazy parameters {', '.join(unsettled)}: remove them")
