"""The user's code, named in a config as `package.module:Name`: where it is found, and how its errors are shown."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from rayfl.config import Config, PartitionConfig
from rayfl.config.composed import ComposedPartition
from rayfl.config.partition import FilePartition
from rayfl.errors import InputError, RayflError, closest
from rayfl.object_names import is_object_name, object_of

_MOST_NAMES = 20
_FORM = "write package.module:Name, such as my_file:MyClass"


def imported(key: str, path: str, what: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Return the object that the import path at config key `key` names; if there is none, list the names that fit.

    `what` describes the object in error messages. For the name of a Python object (`python:...`), return that object.
    """
    if is_object_name(path):
        return object_of(key, path)
    module, name = import_module_of(key, path)
    try:
        return getattr(module, name)
    except AttributeError:
        names = [n for n, value in vars(module).items() if not n.startswith("_") and fits(value)]
        more = ", ..." if len(names) > _MOST_NAMES else ""
        has = f"; it has {', '.join(names[:_MOST_NAMES])}{more}" if names else ""
        raise InputError(
            f"{key}={path}: module '{module.__name__}' has no {what} '{name}'{closest(name, names)}{has}"
        ) from None


def import_module_of(key: str, path: str) -> tuple[ModuleType, str]:
    """Import the module of `path`, the value of config key `key`; return the module and the name after the colon."""
    module, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"{key}={path!r} is not an import path: {_FORM}")
    _search_current_folder()
    try:
        return importlib.import_module(module), name
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            cure = "install it, start in its folder, or put its folder on PYTHONPATH"
            if module.endswith(".py"):
                cure = f"leave out .py: {module.removesuffix('.py')}:{name}"
            raise InputError(
                f"{key}={path}: cannot import {module}, there is no module '{error.name}' in the current folder or on"
                f" Python's path: {cure}"
            ) from None
        raise InputError(f"{key}={path}: importing '{module}' fails: {error}") from error
    except SystemExit as left:
        told = f"SystemExit: it calls sys.exit({left.code!r}) when it is imported"
        raise InputError(f"{key}={path}: importing '{module}' fails: {told}") from None
    except Exception as error:
        raise InputError(f"{key}={path}: importing '{module}' fails: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the type and the first line of an error in the user's code."""
    text: Any = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"


def named_code(config: Config) -> dict[str, list[str]]:
    """Return the import paths that a config names, by key; for an entry of a list, by the key of the whole list."""
    code: dict[str, list[str]] = {}
    for key, names in _names_of_code(config).items():
        code.setdefault(_of_the_list(key), []).extend(name for name in names if not is_object_name(name))
    return {key: names for key, names in code.items() if names}


def named_again(config: Config) -> dict[str, Any]:
    """Return the keys in which a config names code, with their values: a resume imports only code that is named."""
    found = {}
    tree = config.model_dump(mode="json")
    for key in named_code(config):
        value: Any = tree
        for name in key.split("."):
            value = value[name]
        found[key] = value
    return found


def _of_the_list(key: str) -> str:
    """Return the key of the list that an entry is in: an override can set only the whole list.

    >>> _of_the_list("partition.features.0.kind"), _of_the_list("method.name")
    ('partition.features', 'method.name')
    """
    return ".".join(takewhile(lambda name: not name.isdigit(), key.split(".")))


def named_objects(config: Config) -> dict[str, str]:
    """Return the names of the Python objects that a config needs, by key."""
    return {key: name for key, names in _names_of_code(config).items() for name in names if is_object_name(name)}


def check_objects(config: Config) -> None:
    """Refuse a config whose Python objects are not given."""
    for key, name in named_objects(config).items():
        object_of(key, name)


def _names_of_code(config: Config) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {
        "method.name": [config.method.name],
        "model.name": [config.model.name],
        "data.source": [config.data.source],
        "partition.kind": [config.partition.kind],
        **_names_in_parts(config.partition),
        "task": [config.task],
        "local.optimizer": [config.local.optimizer],
        "local.schedule": [config.local.schedule],
        "callbacks": [callback.name for callback in config.callbacks],
    }
    return {key: [name for name in names if ":" in name] for key, names in named.items()}


def _names_in_parts(partition: PartitionConfig) -> dict[str, list[str]]:
    """Return the code that the parts of a composed partition name, or the code that a partition file may name."""
    if isinstance(partition, FilePartition):
        return {"partition.functions": partition.functions}
    if not isinstance(partition, ComposedPartition):
        return {}
    named = {f"{key}.kind": [part.kind] for key, part in partition.placed}
    named |= {"partition.labels.kind": [partition.labels.kind]} if partition.labels is not None else {}
    return named | ({"partition.quantity.kind": [partition.quantity.kind]} if partition.quantity is not None else {})


def search_path(config: Config) -> list[str]:
    """Return the folders in which actors should look for modules: the same as in this process."""
    if named_code(config) or named_objects(config):
        _search_current_folder()
    return list(sys.path)


def _search_current_folder() -> None:
    # Last on the path, and only when there is something to import: the folder may hold, say, an unrelated pandas.py.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@contextmanager
def told_as(kind: type[RayflError], what: str) -> Iterator[None]:
    """Turn any error of the code inside, and also sys.exit(), into an error of this `kind` that has the traceback."""
    try:
        yield
    except RayflError:
        raise
    except (Exception, SystemExit) as error:
        if hasattr(error, "ray_terminate_msg"):  # Ray ends an actor in this way: a lost actor, not an error in the code
            raise
        inside = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
        raise kind(f"{what}:\n{lines}") from None


@contextmanager
def exits_told() -> Iterator[None]:
    """Turn sys.exit() in code that a config names into an error, because the command has not succeeded."""
    try:
        yield
    except SystemExit as left:
        lines = traceback.format_exc().rstrip()
        raise RayflError(f"code that the config names called sys.exit({left.code!r}):\n{lines}") from None
