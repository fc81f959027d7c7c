"""What all parts of the config are: strict, immutable, and shown without secrets."""

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
        """Take in the objects that came along."""
        adopt_objects(state.get("objects", {}))
        super().__setstate__({key: value for key, value in state.items() if key != "objects"})


def tree_without_secrets(value: Any) -> Any:
    """Leave the secrets of URIs out of all text in a tree."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: tree_without_secrets(inner) for key, inner in value.items()}
    return [tree_without_secrets(inner) for inner in value] if isinstance(value, list) else value
