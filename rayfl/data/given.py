"""Python objects in the place of config keys: what `rayfl.run(data=..., partition=...)` takes."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rayfl.data.partition import PartitionKind


@contextmanager
def given_objects(overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Put config keys in the place of objects at `data` and `partition`; a run inside finds the data again.

    Only the loaded arrays go to actors. The saved config has a digest of the data: to go on with the run, give the
    same data again, as `with given_objects({"data": data}): resume(...)`.
    """
    keys = dict(overrides)
    kind = keys.get("partition")
    if isinstance(kind, PartitionKind) or (isinstance(kind, type) and issubclass(kind, PartitionKind)):
        keys["partition"] = kind.config_keys() if isinstance(kind, PartitionKind) else {"kind": kind.import_path()}
    with ExitStack() as stack:
        if _is_data(keys.get("data")):
            from rayfl.data.sources import given_data  # pandas: only those who have data pay for it

            keys["data"] = stack.enter_context(given_data(keys["data"]))
        yield keys


def _is_data(value: Any) -> bool:
    """Whether this is data, rather than the keys of a config's section."""
    if isinstance(value, Mapping):
        return "x" in value or "y" in value
    return value is not None and not isinstance(value, str | int | float | bool)
