"""YAML, dotted overrides and Python keywords in, a config out; every fault becomes a line that says what to do."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from rayfl.config.data import TABLE_HINT, TABLES, AnyData, DataConfig
from rayfl.config.listing import listed
from rayfl.config.method import MethodConfig
from rayfl.config.partition import AnyPartition, PartitionConfig
from rayfl.config.schema import Config
from rayfl.config.union import OWN, members, union_key
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
    tree = config_tree(given, overrides)
    if "sweep" in tree:
        file = shown(str(given)) if isinstance(given, str | Path) else "it"
        raise InputError(f"a config with a sweep section is a grid of runs: carry {file} out with 'rayfl sweep'")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise InputError(*[_line(e) for e in error.errors()]) from None


def config_tree(
    given: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> dict[str, Any]:
    """Return the keys of a config with overrides on top, as `load_config` takes them, not yet checked."""
    tree = _tree(given)
    filed = {name: dict(tree[name]) for name in ("method", *_UNIONS) if isinstance(tree.get(name), dict)}
    for key, value in parsed_overrides(overrides):
        _set(tree, key, value)
    check_tree(tree)
    for name in _UNIONS:
        _leave_out_keys_of_the_former(tree, name, filed.get(name, {}))
    _inherit_options_of_the_former(tree, filed.get("method", {}))
    return tree


def partition_config(**keys: Any) -> PartitionConfig:
    """Check the keys of a partition on their own, without the rest of a config.

    >>> partition_config(kind="dirichlet", clients=5).alpha
    0.1
    """
    return _section_alone("partition", AnyPartition, keys)


def data_config(**keys: Any) -> DataConfig:
    """Check the keys of a data source on their own, without the rest of a config.

    >>> data_config(source="parquet", path="a.parquet").label
    'label'
    """
    return _section_alone("data", AnyData, keys)


def _section_alone(name: str, union: Any, keys: dict[str, Any]) -> Any:
    try:
        return TypeAdapter(union).validate_python(keys)
    except ValidationError as error:
        raise InputError(*[_line({**e, "loc": (name, *e["loc"])}) for e in error.errors()]) from None


#: Sections that are one of several, by the key that says which.
_UNIONS = ("data", "partition")


def _leave_out_keys_of_the_former(tree: dict[str, Any], name: str, filed: dict[str, Any]) -> None:
    """Where an override names another kind or source, leave out what the file says for the former one alone."""
    union = Config.model_fields[name].annotation
    key, sections = union_key(union), members(union)
    node = tree.get(name)
    if not filed or not isinstance(node, dict) or node.get(key) == filed.get(key) or not isinstance(node.get(key), str):
        return
    own = next(n for n in sections if n.startswith(OWN))
    section = sections.get(own if ":" in node[key] else node[key])
    if section is not None:
        former = {k for k, v in filed.items() if k not in section.model_fields and node.get(k) == v}
        tree[name] = {k: v for k, v in node.items() if k not in former}


def _inherit_options_of_the_former(tree: dict[str, Any], filed: dict[str, Any]) -> None:
    """Where an override names another method, set the file's options apart: the method takes those that it knows."""
    node = tree.get("method")
    former = filed.get("name", MethodConfig().name)
    if not isinstance(node, dict) or node.get("name", MethodConfig().name) == former:
        return
    same = {k: v for k, v in node.items() if k not in MethodConfig.model_fields and k in filed and filed[k] == v}
    if same:
        before = node.get("inherited")
        rest = {k: v for k, v in node.items() if k not in same and k != "inherited"}
        tree["method"] = rest | {"inherited": (before if isinstance(before, dict) else {}) | same}


def parsed_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return overrides, given as text or as a mapping, as dotted keys and their values."""
    return list(overrides.items()) if isinstance(overrides, Mapping) else [_parse_override(o) for o in overrides]


def describe_errors(
    error: ValidationError, prefix: str, model: type[BaseModel], others: Sequence[str] = ()
) -> list[str]:
    """Turn the faults of one section, checked on its own, into lines whose keys start with `prefix`.

    `others` are keys that the section has besides those of the model.
    """
    return [_line(e, (prefix,), model, others) for e in error.errors()]


def _tree(given: str | Path | Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Config):
        return given.model_dump(exclude_none=True)
    if isinstance(given, Mapping):
        check_tree(given)
        return deepcopy(dict(given))
    if not isinstance(given, str | Path):
        raise InputError(
            f"a {type(given).__name__} is no config: give a YAML file, a mapping or a Config; data go into"
            " rayfl.run(data=...)"
        )
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
    rivals = _RIVALS.get(parents[-1], ()) if parents else ()
    if last in rivals and value is not None:
        for rival in rivals:
            node.pop(rival, None)
    node[last] = value


#: By section, the keys of which only one may be given.
_RIVALS = {
    "local": ("steps", "epochs"),
    "participation": ("fraction", "count"),
    "arrive": ("share", "count", "clients"),
    "ray": ("gpus_per_actor", "actors_per_gpu"),
}


@dataclass(frozen=True)
class _Place:
    """Where in the schema an error is: the keys, the section that they lie in, and of which union it is a member."""

    keys: list[str | int]
    section: type[BaseModel] | None
    union: tuple[str, Any, str] | None = None  # the key of the union, the union, the name of the member


def _place(root: type[BaseModel], loc: Sequence[str | int]) -> _Place:
    """Follow the place of an error into the schema; `section` is where its last key is, or should be."""
    keys: list[str | int] = []
    section: type[BaseModel] | None = root
    inside: type[BaseModel] | None = root
    of: tuple[str, Any, str] | None = None
    union: tuple[str, Any, str] | None = None
    rest = list(loc)
    while rest:
        key = rest.pop(0)
        if isinstance(key, str) and (key.startswith(("literal[", "list[")) or key in _TYPE_TAGS) and inside is None:
            continue
        keys.append(key)
        if isinstance(key, int):  # in a list, which is still the value of the key before
            continue
        section, union = inside, of
        field = section.model_fields.get(str(key)) if section is not None else None
        inside, of = None, None
        if field is None:
            continue
        sections = members(field.annotation)
        if sections and rest and isinstance(rest[0], int):  # a list of sections
            keys.append(rest.pop(0))
        if sections and rest:
            name = str(rest.pop(0)).partition("=")[2]
            inside, of = sections[name], (str(key), field.annotation, name)
        elif not sections:
            kinds = [field.annotation, *get_args(field.annotation)]
            inside = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
    return _Place(keys, section, union)


def _line(
    error: ErrorDetails, prefix: tuple[str, ...] = (), root: type[BaseModel] = Config, others: Sequence[str] = ()
) -> str:
    if error["type"] == "value_error":  # our own validators say everything themselves
        return str(error["ctx"]["error"])
    place = _place(root, error["loc"])
    key = ".".join([*prefix, *map(str, place.keys)])
    value = error["input"]
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        name = next(str(k) for k in reversed(place.keys) if isinstance(k, str))
        return _unknown_member(key, value, (place.section or root).model_fields[name].annotation)
    if error["type"] == "extra_forbidden":
        last, allowed = str(place.keys[-1]), sorted(place.section.model_fields) if place.section else []
        allowed = [*(others if len(place.keys) == 1 else ()), *allowed]
        if place.union is not None:
            _, union, name = place.union
            users = [n for n, section in members(union).items() if last in section.model_fields and ":" not in n]
            if users:
                which = ".".join([*prefix, *map(str, place.keys[:-1]), union_key(union)])
                return (
                    f"{key}={shown(value)} is not used by {which}={name} (only by {', '.join(users)}): remove it, or"
                    f" change {which}"
                )
        # `round` is meant for `rounds`, though a section has a key of that name.
        hint = _inside_a_section(last) if place.section is Config and f"{last}s" not in allowed else ""
        hint = hint or closest(last, allowed)
        return f"{key}={shown(value)}: there is no key '{last}'{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "literal_error":
        names = [k for k in place.keys if isinstance(k, str)]  # without the position in a list
        field = place.section.model_fields.get(names[-1]) if place.section else None
        allowed = _literals(field.annotation) if field else []
        hint = closest(value, allowed) if isinstance(value, str) else ""
        return f"{key}={shown(value)} is not allowed{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{key} is missing: {error['msg'].lower()}"
    return f"{key}={shown(value)}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _inside_a_section(name: str) -> str:
    """Return a hint where a key that a section has was given without the section: `lr` for `local.lr`."""
    inside = [key.name for key in listed() if key.name.count(".") == 1 and key.name.endswith(f".{name}")]
    return f" (did you mean {' or '.join(map(repr, inside))}?)" if inside else ""


def _unknown_member(key: str, given: Any, union: Any) -> str:
    """Say which kinds or sources there are."""
    which = union_key(union)
    if not isinstance(given, Mapping):
        return f"{key}={shown(given)}: input should be a mapping of keys, such as {key}.{which}"
    value = given.get(which)
    if value is None:
        return f"{key}.{which} is missing: it must be one of {', '.join(members(union))}"
    allowed = [name for name in members(union) if name != "python"]
    hint = closest(value, allowed) if isinstance(value, str) else ""
    if key == "data" and isinstance(value, str) and value.lower().lstrip(".") in TABLES:
        hint = f": {TABLE_HINT}"
    return f"{key}.{which}={shown(value)} is not allowed{hint}; allowed: {', '.join(allowed[:-1])}, or {allowed[-1]}"


_TYPE_TAGS = ("float", "int", "str", "bool", "list[int]", "list[str]")


def _literals(annotation: Any) -> list[str]:
    found = []
    for arg in get_args(annotation):
        found += [arg] if isinstance(arg, str) else _literals(arg)
    return found
