"""The base class of all parts of the config: strict, immutable, and shown without secrets."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rayfl.object_names import adopt_objects, objects_named
from rayfl.uris import without_secrets

#: The most of anything that is counted: rounds, clients, samples, ... What fits into memory is checked later.
MOST = 10**9
Positive = Annotated[int, Field(ge=1, le=MOST)]


class Section(BaseModel):
    """A node of the tree: no unknown keys, no silent conversions, immutable once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __repr_args__(self) -> Any:
        """Show a config without the secrets that it holds."""
        return [(name, tree_without_secrets(value)) for name, value in super().__repr_args__()]

    def __getstate__(self) -> dict[Any, Any]:
        """Take the Python objects that this section names along to another process."""
        return super().__getstate__() | {"objects": objects_named(self.__dict__)}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Register the Python objects that came with the state."""
        adopt_objects(state.get("objects", {}))
        super().__setstate__({key: value for key, value in state.items() if key != "objects"})


def tree_without_secrets(value: Any) -> Any:
    """Leave the secrets of URIs out of all text in a tree."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: tree_without_secrets(inner) for key, inner in value.items()}
    return [tree_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def dotted_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted keys, as overrides have them.

    >>> dotted_keys({"seed": 1, "method": {"name": "ifca", "cam": {"warmup": 3}}})
    {'seed': 1, 'method.name': 'ifca', 'method.cam.warmup': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= dotted_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
