"""One file per method, each a short server program. `METHODS` lists them; a config may also name the user's own."""

import inspect

from pydantic import ValidationError

from rayfl.config import Config, MethodConfig, describe_errors
from rayfl.errors import InputError, closest, shown
from rayfl.federation.facts import Facts
from rayfl.federation.interface import Federation
from rayfl.methods.cfl import CFL
from rayfl.methods.cgpfl import CGPFL
from rayfl.methods.ditto import Ditto
from rayfl.methods.ensemble import FedAvgEnsemble, FedProxEnsemble
from rayfl.methods.fedac import FedAC
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.fedgroup import FedGroup
from rayfl.methods.fedper import FedPer
from rayfl.methods.fedprox import FedProx
from rayfl.methods.fedsoft import FedSoft
from rayfl.methods.fedtsdp import FedTSDP
from rayfl.methods.fesem import FeSEM, WeCFL
from rayfl.methods.flhc import FLHC
from rayfl.methods.ifca import IFCA
from rayfl.methods.local import Local
from rayfl.methods.local_kmeans import LocalKMeans
from rayfl.methods.method import Method
from rayfl.methods.oneshot_ifca import OneShotIFCA
from rayfl.methods.options import MethodOptions
from rayfl.methods.sr_fca import SRFCA
from rayfl.own_code import imported

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavg_ensemble": FedAvgEnsemble,
    "fedprox_ensemble": FedProxEnsemble,
    "fedper": FedPer,
    "ditto": Ditto,
    "local_kmeans": LocalKMeans,
    "ifca": IFCA,
    "fesem": FeSEM,
    "wecfl": WeCFL,
    "cfl": CFL,
    "flhc": FLHC,
    "fedgroup": FedGroup,
    "cgpfl": CGPFL,
    "fedsoft": FedSoft,
    "oneshot_ifca": OneShotIFCA,
    "fedac": FedAC,
    "sr_fca": SRFCA,
    "fedtsdp": FedTSDP,
}


def find_method(name: str) -> type[Method]:
    """Return the method of this name, or the class behind `package.module:Class`."""
    if ":" not in name:
        if name not in METHODS:
            raise InputError(
                f"method.name={shown(name)} is not allowed{closest(name, list(METHODS))};"
                f" allowed: {', '.join(METHODS)}, or package.module:Class"
            )
        return METHODS[name]
    found = imported("method.name", name, "class", lambda value: inspect.isclass(value) and issubclass(value, Method))
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method.name={name} is not a subclass of rayfl.Method: make it one")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"method.name={name} is abstract: write its {missing}, or name a subclass that has them")
    return found


def method_options(config: MethodConfig) -> MethodOptions:
    """Return the method's options with their defaults, or say what is wrong with them."""
    options = find_method(config.name).Options
    try:
        return options.model_validate(config.options_among(options.model_fields))
    except ValidationError as error:
        owner = f"method.name={config.name}"
        raise InputError(*describe_errors(error, "method", options, others=["name"], owner=owner)) from None


def settled_options(config: MethodConfig, rounds: int) -> MethodOptions:
    """Return the method's options with all defaults, including those that depend on the run."""
    return find_method(config.name).settle(method_options(config), rounds)


def check_method(config: MethodConfig, clients: int, cohort: int, rounds: int) -> None:
    """Refuse a method that cannot work with these numbers of clients and rounds."""
    faults = find_method(config.name).check(settled_options(config, rounds), clients, cohort, rounds)
    if faults:
        raise InputError(*faults)


def method_notes(config: MethodConfig, facts: Facts, cohort: int, rounds: int) -> list[str]:
    """Return what a user should know about the method in such a run before it starts."""
    return find_method(config.name).notes(settled_options(config, rounds), facts, cohort, rounds)


def server_models(config: MethodConfig, clients: int) -> int:
    """Return how many models the method's server holds at once."""
    return find_method(config.name).server_models(method_options(config), clients)


def create_method(config: Config, fed: Federation) -> Method:
    """Return the config's method, ready for its first round."""
    return find_method(config.method.name)(settled_options(config.method, config.rounds), fed, config.seed)
