"""Sections that are one of several, told apart by a key such as partition.kind: finding the one, and listing all."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Tag

#: The name of the member that takes import paths, up to what is imported.
OWN = "package.module:"


def tag_of(key: str, default: str, own: str, base: type[BaseModel]) -> Callable[[Any], str | None]:
    """Return what finds the tag of a section: `key=name`; None if there is no name. `own` is for import paths.

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


def _tagged(union: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    for member in get_args(union):
        section, *rest = get_args(member) or (member,)
        for part in rest:
            if isinstance(part, Tag):
                yield part.tag, section
