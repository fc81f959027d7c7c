"""YAML, dotted overrides and Python keywords in, a config out; every fault becomes a line that says what to do."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rayfl.config.method import MethodConfig
from rayfl.config.schema import Config
from rayfl.errors import InputError, closest, shown
from rayfl.input_tree import MOST_CHARACTERS, check_tree, load_yaml


def load_config(
    given: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> Config:
    """Read a config from a YAML file, a mapping or nothing (the embedded default), with overrides on top.

    >>> load_config({"rounds": 5}, ["method.name=fedavg", "seed=3"]).method.name
    'fedavg'
    """
    tree = _tree(given)
    filed = tree.get("method", {})
    filed = dict(filed) if isinstance(filed, dict) else {}
    for key, value in parsed_overrides(overrides):
        _set(tree, key, value)
    check_tree(tree)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise InputError(*[_line(e) for e in error.errors()]) from None
    if config.method.name != filed.get("name", MethodConfig().name):
        unchanged = {k for k, v in config.method.options.items() if k in filed and filed[k] == v}
        config.method._of_another = frozenset(unchanged)
    return config


def parsed_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return overrides, given as text or as a mapping, as dotted keys and their values."""
    return list(overrides.items()) if isinstance(overrides, Mapping) else [_parse_override(o) for o in overrides]


def describe_errors(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[str]:
    """Turn the faults of one section, checked on its own, into lines whose keys start with `prefix`."""
    return [_line(e, (prefix,), model) for e in error.errors()]


def _tree(given: str | Path | Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Config):
        return given.model_dump(exclude_none=True)
    if isinstance(given, Mapping):
        check_tree(given)
        return deepcopy(dict(given))
    path = Path(given)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)  # a device or a pipe may have no end
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"config file {path} cannot be read: {reason}") from None
    tree = load_yaml(text, f"config file {path}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"config file {path} must hold keys such as 'rounds: 60', not a {type(tree).__name__}")
    return tree


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise InputError(f"{shown(text)} is not an override: write key=value, for example method.name=fedavg")
    return key.strip(), load_yaml(value, f"{key.strip()}={shown(value)}: the value")


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key. A mapping is merged into what is there, an empty one clears it, and an either-or key displaces
    its rival.
    """
    *parents, last = dotted.split(".")
    node = tree
    for i, parent in enumerate(parents):
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            name = ".".join(parents[: i + 1])
            raise InputError(f"{dotted}={shown(value)}: {name} is a value ({shown(node)}), it has no keys below it")
    if isinstance(value, Mapping) and value and isinstance(node.get(last), dict):
        for key, inner in value.items():
            _set(node[last], str(key), inner)
        return
    for rivals in (("steps", "epochs"), ("fraction", "count"), ("gpus_per_actor", "actors_per_gpu")):
        if last in rivals and value is not None and parents and parents[-1] in ("local", "participation", "ray"):
            for rival in rivals:
                node.pop(rival, None)
    node[last] = value


def _section(model: type[BaseModel], keys: Sequence[str | int]) -> type[BaseModel] | None:
    for key in keys:
        field = model.model_fields.get(str(key))
        if field is None:
            return None
        kinds = [field.annotation, *get_args(field.annotation)]
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), BaseModel)
    return model


def _line(error: ErrorDetails, prefix: tuple[str, ...] = (), root: type[BaseModel] = Config) -> str:
    loc = [k for k in error["loc"] if not (isinstance(k, str) and (k.startswith("literal[") or k in _TYPE_TAGS))]
    key = ".".join([*prefix, *map(str, loc)])
    value = error["input"]
    if error["type"] == "value_error":  # our own validators say everything themselves
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        section = _section(root, loc[:-1])
        allowed = sorted(section.model_fields) if section else []
        hint = closest(str(loc[-1]), allowed)
        return f"{key}={shown(value)}: there is no key '{loc[-1]}'{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "literal_error":
        names = [k for k in loc if isinstance(k, str)]  # without the position in a list
        section = _section(root, names[:-1])
        field = section.model_fields.get(names[-1]) if section else None
        allowed = _literals(field.annotation) if field else []
        hint = closest(value, allowed) if isinstance(value, str) else ""
        return f"{key}={shown(value)} is not allowed{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{key} is missing: {error['msg'].lower()}"
    return f"{key}={shown(value)}: {error['msg'][0].lower()}{error['msg'][1:]}"


_TYPE_TAGS = ("float", "int", "str", "bool", "list[int]")


def _literals(annotation: Any) -> list[str]:
    found = []
    for arg in get_args(annotation):
        found += [arg] if isinstance(arg, str) else _literals(arg)
    return found
