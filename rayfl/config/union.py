"""Unions of sections, told apart by a key such as partition.kind: find the section that is meant, and list all."""

from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag

#: How the name of the member for import paths begins; what is imported follows.
OWN = "package.module:"


def tag_of(key: str, default: str, own: str, base: type[BaseModel]) -> Callable[[Any], str | None]:
    """Return a function that gives a section's tag `key=name`, or None without a name; `own` replaces import paths.

    The tag becomes part of the place of an error, so it must not look like a key.
    """

    def tag(given: Any) -> str | None:
        if isinstance(given, base):
            name: Any = getattr(given, key)
        elif isinstance(given, Mapping):
            name = default if given.get(key) is None else given[key]
        else:
            return None
        return f"{key}={own if ':' in name else name}" if isinstance(name, str) else None

    return tag


def members(union: Any) -> dict[str, type[BaseModel]]:
    """Return the sections of a union by their names; nothing if it is no union of tagged sections."""
    return {tag.partition("=")[2]: section for tag, section in _tagged(union)}


def union_key(union: Any) -> str:
    """Return the key that tells the members of a union apart."""
    return next(_tagged(union))[0].partition("=")[0]


def is_list(union: Any) -> bool:
    """Whether a key holds a list of sections of a union."""
    return get_origin(union) is list


def _tagged(union: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the tags and sections of a union, also of an optional union or of a list of unions."""
    if get_origin(union) is Annotated:
        inner, *rest = get_args(union)
        tags = [part.tag for part in rest if isinstance(part, Tag)]
        if tags:
            yield tags[0], inner
        else:
            yield from _tagged(inner)
    elif get_origin(union) in (Union, UnionType, list):
        for member in get_args(union):
            yield from _tagged(member)
