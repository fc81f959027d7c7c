"""State as plain data: a JSON tree and named arrays, from which it can be made again without loading any code.

What a server remembers is dataclasses of arrays, numbers and text. The tree names no classes: on the way back they come
from the type annotations of the class that is asked for, so a foreign file can give wrong numbers but never run.
"""

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from rayfl.errors import InputError

Packed = tuple[Any, dict[str, np.ndarray]]


def pack(value: Any, name: str = "state") -> Packed:
    """Return `value` as a tree that JSON can hold and the arrays that it points to.

    >>> tree, arrays = pack({"centres": np.zeros((2, 3)), "tuned": False})
    >>> unpack((tree, arrays), dict)["centres"].shape
    (2, 3)
    """
    arrays: dict[str, np.ndarray] = {}
    return _pack(value, name, arrays), arrays


def unpack(packed: Packed, kind: Any) -> Any:
    """Make the value again; `kind` is its class, or any annotation that says what it was. Arrays are fresh copies."""
    tree, arrays = packed
    try:
        return _unpack(tree, arrays, kind)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"the checkpoint does not hold the state of this method ({type(error).__name__}: {error}):"
            " it was written by another version of the method or of rayfl; run anew"
        ) from None


def _pack(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcSU":
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
    if not isinstance(tree, dict):
        return tree
    (form, inner), *_ = tree.items()
    if form == "array":
        return np.array(arrays[inner])
    if form == "scalar":
        return arrays[inner][()]
    if form == "fields":
        cls = _dataclass_in(kind)
        hints = typing.get_type_hints(cls)
        return cls(**{f: _unpack(v, arrays, hints.get(f, Any)) for f, v in inner.items()})
    if form == "dict":
        of = _inner_kind(kind, dict, -1)
        return {k: _unpack(v, arrays, of) for k, v in inner}
    if form in ("list", "tuple"):
        of = _inner_kind(kind, list if form == "list" else tuple, 0)
        values = [_unpack(v, arrays, of) for v in inner]
        return values if form == "list" else tuple(values)
    raise ValueError(f"unknown form {form!r}")


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


def _inner_kind(kind: Any, container: type, at: int) -> Any:
    """Return what a list[X], tuple[X, ...] or dict[K, X] holds, as far as the annotation says."""
    for choice in _choices(kind):
        if typing.get_origin(choice) is container and typing.get_args(choice):
            return typing.get_args(choice)[at]
    return Any
