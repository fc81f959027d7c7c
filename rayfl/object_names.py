"""Names for Python objects in a config: `rayfl.run(model=MyNet)` makes `model.name` the text `python:MyNet`.

A config holds plain values only, so the object itself is kept here while a run uses it. When a config is sent to
another process, the objects that it names are sent too. A run's folder holds only the name: to resume the run, pass the
object again.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rayfl.errors import InputError

_PREFIX = "python:"

#: The objects by name, each with the number of runs that use it now; 0 if it came with a config from another process.
_OBJECTS: dict[str, tuple[Any, int]] = {}


def is_object_name(name: Any) -> bool:
    """Whether this text is the name of a Python object.

    >>> is_object_name("python:MyNet"), is_object_name("my_file:MyNet")
    (True, False)
    """
    return isinstance(name, str) and name.startswith(_PREFIX)


def object_name(value: Any) -> str:
    """Return the name of a class or a function; for any other object, the name of its class.

    >>> object_name(dict), object_name({})
    ('python:dict', 'python:dict')
    """
    name = getattr(value, "__name__", None) or type(value).__name__
    return _PREFIX + (re.sub(r"\W", "", str(name)) or "object")


@contextmanager
def offered(value: Any) -> Iterator[str]:
    """Keep an object while the block runs; yield its name."""
    name = object_name(value)
    other, users = _OBJECTS.get(name, (value, 0))
    if users and other is not value:
        raise InputError(f"{name}: another object of this name is in use in this process: rename one of them")
    _OBJECTS[name] = (value, users + 1)
    try:
        yield name
    finally:
        _, users = _OBJECTS.pop(name)
        if users > 1:
            _OBJECTS[name] = (value, users - 1)


def object_of(key: str, name: str) -> Any:
    """Return the object that the value of config key `key` stands for."""
    if name not in _OBJECTS:
        argument = key.partition(".")[0]
        raise InputError(
            f"{key}={name} stands for a Python object, which was not given: pass it again from Python, as"
            f" {argument}=... of rayfl.run or rayfl.resume"
        )
    return _OBJECTS[name][0]


def objects_named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by name, the objects that the values of a config section name, if they are known in this process."""
    return {name: _OBJECTS[name][0] for name in values.values() if is_object_name(name) and name in _OBJECTS}


def adopt_objects(objects: Mapping[str, Any]) -> None:
    """Keep the objects that came with a config of another process."""
    for name, value in objects.items():
        if not _OBJECTS.get(name, (None, 0))[1]:  # an object that was given in this process stays
            _OBJECTS[name] = (value, 0)
