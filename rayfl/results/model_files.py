"""The files of saved models: an index, and safetensors with each tensor of the network stacked over the models.

    models/index.json                          which model each client and cluster has; written last
    models/shared-000060.safetensors           shared models, the initial one first; model k is row k of each tensor
    models/personal-000060-00000.safetensors   models that belong to one client

This module handles arrays only; `saved_models` builds networks from them. A folder may come from anybody, so everything
in it is checked.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayfl.config import ModelsToSave
from rayfl.errors import InputError
from rayfl.models.layout import Layout
from rayfl.results.storage import Storage

FOLDER = "models"
INDEX = "index.json"
VERSION: Final = 1
#: Used instead of a row of the shared models if the client's model is a personal one, or was not saved.
PERSONAL, LEFT_OUT = -1, -2
#: Prefix of the names of arrays that are not tensors of the network.
ABOUT = "rayfl/"

Count = Annotated[int, Field(ge=0, lt=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Served(_Strict):
    """Models whose outputs are combined: their rows among the shared models, and how outputs are combined."""

    rows: Annotated[list[Count], Field(min_length=1)]
    combine: Literal["logits", "probabilities"]


class ClusterModel(Served):
    """The models that a cluster's clients use."""

    cluster: Count


class Inputs(_Strict):
    """The format of samples, before and after normalisation."""

    kind: Literal["image", "vector", "text"]
    shape: list[Count]
    classes: Count
    vocabulary: Count | None
    transforms: list[dict[str, Any]]  # those of the partition, by number
    feature_names: list[str] | None = None  # of the columns of a table, in their order
    class_names: list[str] | None = None


class PersonalFile(_Strict):
    """A file with the personal models of clients `first` to `last`."""

    name: Annotated[str, Field(pattern=r"^personal-\d{6,9}-\d{5,9}\.safetensors$")]
    first: Count
    last: Count


class ModelsIndex(_Strict):
    """Which models were saved, and to which clients and clusters they belong."""

    rayfl_models: Literal[1] = VERSION
    round: Count
    models: ModelsToSave
    combine: Literal["logits", "probabilities"]  # how the outputs of a client's models are combined
    everyone: Served | None  # the model that all clients share, or the global model
    clusters: list[ClusterModel]
    shared: Annotated[str, Field(pattern=r"^shared-\d{6,9}\.safetensors$")]
    personal: list[PersonalFile]
    inputs: Inputs
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    channels_last: bool

    @property
    def files(self) -> list[str]:
        """The files that the index names."""
        return [self.shared, *[file.name for file in self.personal]]


def folder_of(number: int | None = None) -> str:
    """Return the folder of the models saved after round `number`, or at the end."""
    return FOLDER if number is None else f"{FOLDER}/round-{number:06d}"


def stacked_tensors(layout: Layout, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return flat models (n, size) as the tensors of the network by name, each (n, *shape)."""
    tensors = {}
    for name, where, shape, last in zip(layout.names, layout.slices, layout.shapes, layout.channels_last, strict=True):
        piece = vectors[:, where]
        if last:
            out, channels, height, width = shape
            piece = np.moveaxis(piece.reshape(-1, out, height, width, channels), -1, 2)
        tensors[name] = np.ascontiguousarray(piece.reshape(-1, *shape))
    return tensors


def flat_vector(layout: Layout, tensors: Mapping[str, np.ndarray], row: int) -> np.ndarray:
    """Return model number `row` as a flat vector; ValueError if the tensors belong to another network."""
    vector = np.empty(layout.size, np.float32)
    names = {name for name in tensors if not name.startswith(ABOUT)}
    if names != set(layout.names):
        raise ValueError(f"tensors {sorted(names ^ set(layout.names))[:5]} are only in one of them")
    for name, where, shape, last in zip(layout.names, layout.slices, layout.shapes, layout.channels_last, strict=True):
        stack = tensors[name]
        if stack.dtype != np.float32 or stack.shape[1:] != shape or not 0 <= row < len(stack):
            raise ValueError(f"{name} is {stack.dtype} of shape {stack.shape}")
        piece = stack[row]
        vector[where] = (np.moveaxis(piece, 1, -1) if last else piece).reshape(-1)
    return vector


class ModelFiles:
    """Writes a run's models after one round; the index is written last, so that readers see all models or none."""

    def __init__(self, storage: Storage, folder: str, number: int, layout: Layout) -> None:
        self._storage, self._folder, self._number, self._layout = storage, folder, number, layout
        self._personal: list[PersonalFile] = []

    def write_personal(self, clients: np.ndarray, parts: np.ndarray, vectors: np.ndarray) -> None:
        """Write models (n, size) that each belong to one client, in the order of the clients.

        If a client uses several models together, `parts` has the number of each row among the client's models.
        """
        name = f"personal-{self._number:06d}-{len(self._personal):05d}.safetensors"
        about: dict[str, np.ndarray] = {
            f"{ABOUT}client": clients.astype(np.int64),
            f"{ABOUT}part": parts.astype(np.int32),
        }
        self._write(name, stacked_tensors(self._layout, vectors) | about)
        self._personal.append(PersonalFile(name=name, first=int(clients[0]), last=int(clients[-1])))

    def write_shared(self, vectors: np.ndarray, about: Mapping[str, np.ndarray], **index: Any) -> None:
        """Write the shared models and the arrays `about` clients, then the index; then remove outdated files.

        `index` has the remaining fields of ModelsIndex. Files that only the old index names are outdated.
        """
        name = f"shared-{self._number:06d}.safetensors"
        arrays = {f"{ABOUT}{key}": np.ascontiguousarray(array) for key, array in about.items()}
        self._write(name, stacked_tensors(self._layout, vectors) | arrays)
        old = read_index(self._storage, self._folder, damaged_is_none=True)
        new = ModelsIndex(round=self._number, shared=name, personal=self._personal, **index)
        self._storage.write(f"{self._folder}/{INDEX}", new.model_dump_json(indent=1).encode())
        for file in set(old.files) - set(new.files) if old else ():
            self._storage.remove(f"{self._folder}/{file}")

    def _write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        from safetensors.numpy import save

        self._storage.write(f"{self._folder}/{name}", save(dict(arrays), {"round": str(self._number)}))


def read_index(storage: Storage, folder: str = FOLDER, damaged_is_none: bool = False) -> ModelsIndex | None:
    """Return the index of the models in a folder; None if there is none."""
    path = f"{folder}/{INDEX}"
    try:
        return ModelsIndex.model_validate_json(storage.read(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        if damaged_is_none:
            return None
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(
            f"{storage.path}/{path} is damaged, or of another version of rayfl"
            f" ({'.'.join(map(str, first['loc']))}: {first['msg']}): restore it, or run again"
        ) from None


def read_tensors(storage: Storage, folder: str, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of one file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = f"{storage.path}/{folder}/{name}"
    try:
        return load(storage.read(f"{folder}/{name}"))
    except FileNotFoundError:
        raise InputError(f"{path} is gone: restore it, or run again") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it, or run again") from None


def saved_rounds(storage: Storage) -> list[int]:
    """Return the rounds after which models were saved because a callback asked for it."""
    names: Sequence[str] = storage.list(FOLDER)
    return sorted(int(n[6:]) for n in names if n.startswith("round-") and n[6:].isdigit() and len(n) >= 12)
