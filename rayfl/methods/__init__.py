"""One file per method, each a short server program. `METHODS` lists them; a config may also name a user's own."""

import importlib

from pydantic import ValidationError

from rayfl.config import Config, MethodConfig, Section, describe_errors
from rayfl.errors import InputError, closest
from rayfl.federation.interface import Federation
from rayfl.methods.fedac import FedAC
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.fedprox import FedProx
from rayfl.methods.local import Local
from rayfl.methods.method import Method

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedac": FedAC,
}


def find_method(name: str) -> type[Method]:
    """Return the method of this name, or the class behind `package.module:Class`."""
    if ":" not in name:
        if name not in METHODS:
            raise InputError(
                f"method.name={name!r} is not allowed{closest(name, list(METHODS))};"
                f" allowed: {', '.join(METHODS)}, or package.module:Class"
            )
        return METHODS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise InputError(
            f"method.name={name}: cannot import {module} ({error}); is its folder on PYTHONPATH?"
        ) from None
    except AttributeError:
        raise InputError(f"method.name={name}: {module} has no {attribute}") from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method.name={name} is not a subclass of rayfl.methods.method.Method")
    return found


def method_options(config: MethodConfig) -> Section:
    """Return the method's options with their defaults, or say what is wrong with them."""
    options = find_method(config.name).Options
    try:
        return options.model_validate(config.options_among(options.model_fields))
    except ValidationError as error:
        raise InputError(*describe_errors(error, "method", options)) from None


def check_method(config: MethodConfig, clients: int, cohort: int) -> None:
    """Refuse a method that cannot work with so many clients."""
    faults = find_method(config.name).check(method_options(config), clients, cohort)
    if faults:
        raise InputError(*faults)


def create_method(config: Config, fed: Federation) -> Method:
    """Return the config's method, ready for its first round."""
    return find_method(config.method.name)(method_options(config.method), fed, config.seed)
