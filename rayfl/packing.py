"""State as plain data: a JSON tree and named arrays, from which the state can be rebuilt without loading any code.

A server's state consists of dataclasses of arrays, numbers and text. The tree names no classes: when it is read back,
the classes come from the type annotations of the expected class. So a manipulated file can give wrong numbers but can
never run code.
"""

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from rayfl.errors import InputError

Packed = tuple[Any, dict[str, np.ndarray]]

#: The kinds of arrays that a checkpoint can hold: numbers and text, no objects.
ARRAY_KINDS = "biufcSU"


def pack(value: Any, name: str = "state") -> Packed:
    """Return `value` as a tree that JSON can hold, and the arrays that the tree refers to.

    >>> tree, arrays = pack({"centres": np.zeros((2, 3)), "tuned": False})
    >>> unpack((tree, arrays), dict)["centres"].shape
    (2, 3)
    """
    arrays: dict[str, np.ndarray] = {}
    return _pack(value, name, arrays), arrays


def unpack(packed: Packed, kind: Any) -> Any:
    """Rebuild the value; `kind` is its class, or a type annotation that describes it. Arrays are new copies."""
    tree, arrays = packed
    try:
        return _unpack(tree, arrays, kind)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(foreign(f"{type(error).__name__}: {error}")) from None


def foreign(reason: str) -> str:
    """Return a message that a checkpoint does not belong to this method."""
    return (
        f"the checkpoint does not hold the state of this method ({reason}): it was written by another version of the"
        " method or of rayfl; start a new run"
    )


def refuse_other_shapes(state: Any, like: Any, size: int, name: str = "method") -> None:
    """Refuse a state if an array has more or fewer dimensions than in `like`, or if models do not have this `size`.

    The number of clusters may change from round to round, so other lengths are accepted.
    """
    if isinstance(like, np.ndarray) and like.size and isinstance(state, np.ndarray):
        lengths = zip(state.shape, like.shape, strict=False)
        if state.ndim != like.ndim or any(before == size != now for now, before in lengths):
            raise InputError(foreign(f"{name} has the shape {state.shape}"))
    elif dataclasses.is_dataclass(like) and dataclasses.is_dataclass(state):
        for field in dataclasses.fields(like):
            at = f"{name}.{field.name}"
            refuse_other_shapes(getattr(state, field.name, None), getattr(like, field.name), size, at)


def _pack(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in ARRAY_KINDS:
        arrays[name] = np.asarray(value)
        return {"scalar" if isinstance(value, np.generic) else "array": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value)]
        return {"fields": {f: _pack(getattr(value, f), f"{name}.{f}", arrays) for f in fields}}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(k, str | int) for k in value):
        return {"dict": [[k, _pack(v, f"{name}.{i}", arrays)] for i, (k, v) in enumerate(value.items())]}
    raise InputError(
        f"{name} is of type {type(value).__name__}, which a checkpoint cannot hold: let a method's state be a dataclass"
        " of numpy arrays, numbers, text, and lists, dicts or dataclasses of these"
    )


def _unpack(tree: Any, arrays: dict[str, np.ndarray], kind: Any) -> Any:
    value = _made(tree, arrays, kind)
    if not any(_could_be(value, choice) for choice in _choices(kind)):
        raise TypeError(f"{type(value).__name__} where {getattr(kind, '__name__', kind)} is expected")
    return value


def _made(tree: Any, arrays: dict[str, np.ndarray], kind: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((form, inner),) = tree.items()
    if form == "array":
        return np.array(arrays[inner])
    if form == "scalar":
        return arrays[inner][()]
    if form == "fields":
        cls = _dataclass_in(kind)
        hints = typing.get_type_hints(cls)
        return cls(**{f: _unpack(v, arrays, hints.get(f, Any)) for f, v in inner.items()})
    if form == "dict":
        _, of = _inner_kinds(kind, dict, 2)
        return {k: _unpack(v, arrays, of) for k, v in inner}
    if form == "list":
        (of,) = _inner_kinds(kind, list, 1)
        return [_unpack(v, arrays, of) for v in inner]
    if form == "tuple":
        kinds = _inner_kinds(kind, tuple, len(inner))
        return tuple(_unpack(v, arrays, of) for v, of in zip(inner, kinds, strict=True))
    raise ValueError(f"unknown form {form!r}")


_NUMBERS = (bool, int, float, complex, np.generic)


def _could_be(value: Any, kind: Any) -> bool:
    """Return whether a value is roughly of the type that an annotation names: an array, a number, text, a container.

    The check is not stricter, because authors of methods write `float` where an integer may occur. None is accepted
    only if the annotation has it (`float | None`): otherwise a manipulated state with None in place of an array would
    fail only in the middle of a round.
    """
    kind = typing.get_origin(kind) or kind
    if kind is Any or not isinstance(kind, type):
        return True
    if value is None:
        return kind is types.NoneType
    if issubclass(kind, _NUMBERS):
        return isinstance(value, _NUMBERS)
    return isinstance(value, kind)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the kind itself."""
    return (
        typing.get_args(kind)
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
        else (kind,)
    )


def _dataclass_in(kind: Any) -> Any:
    for choice in _choices(kind):
        if isinstance(choice, type) and dataclasses.is_dataclass(choice):
            return choice
    raise TypeError(f"a dataclass was saved where {kind} is expected")


def _inner_kinds(kind: Any, container: type, count: int) -> tuple[Any, ...]:
    """Return the `count` types inside a list[X], dict[K, X], tuple[X, Y] or tuple[X, ...]; Any if it has none."""
    for choice in _choices(kind):
        kinds = typing.get_args(choice) if typing.get_origin(choice) is container else ()
        if kinds[1:] == (...,):
            kinds = kinds[:1] * count
        if len(kinds) == count:
            return kinds
    return (Any,) * count
