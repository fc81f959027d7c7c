"""Every key of the config with its default and its meaning, for `rayfl config`, and as a JSON schema for editors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rayfl.config.schema import Config
from rayfl.config.union import is_list, members, union_key


@dataclass(frozen=True)
class Key:
    """A dotted key."""

    name: str
    default: Any
    meaning: str
    only: tuple[str, ...] = ()  # the kinds or sources that read it; empty: all of them


def listed(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[Key]:
    """Yield all keys in order, also those of nested sections; a method's own options are described with the method."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        if several := members(field.annotation):
            yield from _of_several(
                several, union_key(field.annotation), f"{key}[]." if is_list(field.annotation) else f"{key}."
            )
        elif inner := _section(field.annotation):
            yield from listed(inner, f"{key}.")
        else:
            yield Key(key, _default(field), field.description or "")


def _inside(key: Key, field: FieldInfo) -> Iterator[Key]:
    """Yield the keys of the sections inside `key`, which belongs to a member of a union."""
    name = f"{key.name}[]." if get_origin(field.annotation) is list else f"{key.name}."
    if several := members(field.annotation):
        found = _of_several(several, union_key(field.annotation), name)
    else:
        kinds = [field.annotation, *get_args(field.annotation)]
        section = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        found = listed(section, name) if section is not None else iter(())
    for inner in found:
        yield Key(inner.name, inner.default, inner.meaning, (*key.only, *inner.only))


def _of_several(several: dict[str, type[BaseModel]], choice: str, prefix: str) -> Iterator[Key]:
    """Yield the keys of all members of a union of sections, each key once."""
    found: dict[str, Key] = {}
    readers: dict[str, list[str]] = {}
    fields: dict[str, FieldInfo] = {}
    for kind, section in several.items():
        for name, field in section.model_fields.items():
            readers.setdefault(name, []).append(kind)
            known = found.get(name)
            if known is None or (not known.meaning and field.description):
                found[name] = Key(f"{prefix}{name}", _default(field), field.description or "")
                fields[name] = field
    for name, key in found.items():
        if name == choice:
            default = _default(next(iter(several.values())).model_fields[choice])
            yield Key(key.name, default, f"one of {', '.join(several)}")
        else:
            only = () if len(readers[name]) == len(several) else tuple(readers[name])
            yield (shown := Key(key.name, key.default, key.meaning, only))
            yield from _inside(shown, fields[name])


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return field.get_default(call_default_factory=True, validated_data={})
    return None if field.default is PydanticUndefined else field.default


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds; a list of sections is a value."""
    if get_origin(annotation) is list:
        return None
    kinds = [annotation, *get_args(annotation)]
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
