"""Python objects in place of config values: what `rayfl.run(data=..., model=..., method=..., ...)` takes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rayfl.object_names import is_object_name, offered

#: Whether a value is an object that this key accepts. Other values go to the config, which reports what is wrong.
_IS_OBJECT: dict[str, Callable[[Any], bool]] = {
    "model.name": callable,  # a class, a function that builds a network, or a network
    "method.name": callable,
    "task": lambda value: isinstance(value, type) or hasattr(type(value), "loss"),
}


@contextmanager
def given_objects(overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Replace objects by config values; a run inside this block finds the objects by these values.

    The saved config holds a digest of the data, and the names of other objects. To resume the run, pass the same
    objects again: `with given_objects({"data": data}): resume(...)`.
    """
    keys = dict(overrides)
    with ExitStack() as stack:
        for name, is_object in _IS_OBJECT.items():
            section, _, inner = name.partition(".")
            value = keys.get(section)
            if inner and isinstance(value, Mapping) and is_object(value.get(inner)):
                keys[section] = {**value, inner: stack.enter_context(offered(value[inner]))}
            elif is_object(value):
                found = stack.enter_context(offered(value))
                keys[section] = {inner: found} if inner else found
            if inner and is_object(keys.get(name)):  # a dotted key
                keys[name] = stack.enter_context(offered(keys[name]))
        if _is_kind(keys.get("partition")):
            keys["partition"] = _partition_keys(keys["partition"], stack)
        if _is_data(keys.get("data")):
            from rayfl.data.sources import given_data  # imports pandas, so only if data are given

            keys["data"] = stack.enter_context(given_data(keys["data"]))
        yield keys


def _is_kind(value: Any) -> bool:
    from rayfl.data.partition import PartitionKind

    return isinstance(value, PartitionKind) or (isinstance(value, type) and issubclass(value, PartitionKind))


def _partition_keys(given: Any, stack: ExitStack) -> dict[str, Any]:
    """Return the config keys of a partition kind, given as a class or as an object with its options."""
    kind: Any = given if isinstance(given, type) else type(given)
    if is_object_name(kind.config_name()):
        stack.enter_context(offered(kind))
    return {"kind": kind.config_name()} if given is kind else given.config_keys()


def _is_data(value: Any) -> bool:
    """Whether this value is data, and not a mapping with the keys of the config's `data` section."""
    if isinstance(value, Mapping):
        return "x" in value or "y" in value
    return value is not None and not isinstance(value, str | int | float | bool)
