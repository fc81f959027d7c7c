"""YAML, dotted overrides and Python keywords in, a config out; every fault becomes a line that says what to do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from rayfl.config.data import TABLE_HINT, TABLES, AnyData, DataConfig
from rayfl.config.layers import read_layers
from rayfl.config.listing import listed
from rayfl.config.overriding import override
from rayfl.config.partition import AnyPartition, PartitionConfig
from rayfl.config.schema import Config
from rayfl.config.union import members, union_key
from rayfl.errors import InputError, closest, shown
from rayfl.input_tree import load_yaml


def load_config(
    given: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    sets: str | Sequence[str] = (),
) -> Config:
    """Read a config from a YAML file, a mapping or nothing (the embedded default), with overrides on top.

    `sets` are names of the file's sets, which come before the overrides.

    >>> load_config({"rounds": 5}, ["method.name=fedavg", "seed=3"]).method.name
    'fedavg'
    """
    tree = config_tree(given, overrides, sets)
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
    sets: str | Sequence[str] = (),
) -> dict[str, Any]:
    """Return the keys of a config with overrides on top, not yet checked; the arguments are those of `load_config`."""
    tree = read_layers(given, [sets] if isinstance(sets, str) else sets)
    override(tree, parsed_overrides(overrides))
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


def parsed_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return overrides, given as text or as a mapping, as dotted keys and their values."""
    return list(overrides.items()) if isinstance(overrides, Mapping) else [_parse_override(o) for o in overrides]


def describe_errors(
    error: ValidationError, prefix: str, model: type[BaseModel], others: Sequence[str] = (), owner: str = ""
) -> list[str]:
    """Turn the faults of one section, checked on its own, into lines whose keys start with `prefix`.

    `others` are keys that the section has besides those of the model; `owner` says what the section belongs to.
    """
    return [_line(e, (prefix,), model, others, owner) for e in error.errors()]


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        form = "write key=value without spaces, for example method.name=fedavg"
        if text.lower().endswith((".yaml", ".yml", ".json")):
            form = "a config file is the first word, and there is only one"
        raise InputError(f"{shown(text)} is not an override: {form}")
    return key.strip(), load_yaml(value, f"{key.strip()}={shown(value)}: the value")


@dataclass(frozen=True)
class _Place:
    """Where in the schema an error is: its keys, the section of the last key, and the union that has this section."""

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
        if isinstance(key, int):  # a place in a list; the list is the value of the key before
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
            found = _section_of(field.annotation)
            inside = None if found is BaseModel else found
    return _Place(keys, section, union)


def _line(
    error: ErrorDetails,
    prefix: tuple[str, ...] = (),
    root: type[BaseModel] = Config,
    others: Sequence[str] = (),
    owner: str = "",
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
        # Outside a section, `round` is meant to be `rounds`, although some sections have a key called `round`.
        hint = _inside_a_section(last) if place.section is Config and f"{last}s" not in allowed else ""
        if place.section is Config and "." in last:
            first, _, inner = last.partition(".")
            where = "on the command line, in sets and in sweeps"
            hint = f" (dotted keys are for overrides, {where}; here, write {first}: {{{inner}: ...}})"
        hint = hint or closest(last, allowed)
        where = f" with {owner}" if owner else ""
        return f"{key}={shown(value)}: there is no key '{last}'{hint}; allowed{where}: {', '.join(allowed)}"
    if error["type"] == "literal_error":
        names = [k for k in place.keys if isinstance(k, str)]  # without the position in a list
        field = place.section.model_fields.get(names[-1]) if place.section else None
        allowed = _literals(field.annotation) if field else []
        hint = closest(value, allowed) if isinstance(value, str) else ""
        return f"{key}={shown(value)} is not allowed{hint}; allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{key} is missing: {error['msg'].lower()}"
    if error["type"] == "model_type":
        field = (place.section or root).model_fields.get(str(place.keys[-1])) if place.keys else None
        first = next(iter(_section_of(field.annotation).model_fields), "") if field is not None else ""
        means = f" (did you mean {key}.name={value}?)" if first == "name" and isinstance(value, str) else ""
        return (
            f"{key}={shown(value)}: input should be a mapping of keys{f', such as {key}.{first}' * bool(first)}{means}"
        )
    said = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    if error["type"] == "list_type" and isinstance(value, str):
        said += f", in brackets: {key}=[{value}]"
    if error["type"].startswith(("int_", "float_")) and _are_several(value):
        said += "; for one run per value use 'rayfl sweep', with values such as 1,2,3 or 0..4"
    return f"{key}={shown(value)}: {said}"


def _are_several(value: Any) -> bool:
    """Whether several numbers were given where a run takes one."""
    return isinstance(value, list) or (
        isinstance(value, str) and re.search(r"\d\s*(,|\.\.|-|:)\s*\d", value) is not None
    )


def _section_of(annotation: Any) -> type[BaseModel]:
    kinds = [annotation, *get_args(annotation)]
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), BaseModel)


def _inside_a_section(name: str) -> str:
    """Return a hint if a key was given without its section, such as `lr` instead of `local.lr`."""
    inside = [key.name for key in listed() if key.name.count(".") == 1 and key.name.endswith(f".{name}")]
    return f" (did you mean {' or '.join(map(repr, inside))}?)" if inside else ""


def _unknown_member(key: str, given: Any, union: Any) -> str:
    """Say which kinds or sources there are."""
    which = union_key(union)
    if not isinstance(given, Mapping):
        means = f" (did you mean {key}.{which}={given}?)" if isinstance(given, str) and given in members(union) else ""
        return f"{key}={shown(given)}: input should be a mapping of keys, such as {key}.{which}{means}"
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
