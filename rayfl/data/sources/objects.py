"""Data as Python objects: arrays, DataFrames and torch data sets, from a user's function or handed to `rayfl.run`."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd

from rayfl.data.sources.arrays import ARRAYS, as_array, check_names, from_arrays
from rayfl.data.sources.features import Missing
from rayfl.data.sources.samples import Samples
from rayfl.data.sources.tables import Columns, from_frame
from rayfl.errors import InputError

_MISSING = ", ".join(get_args(Missing))
_FORMS = (
    "give arrays (x, y), a mapping with x and y, a pandas DataFrame, a torch Dataset of pairs, or rayfl.data.Data(...)"
)


@dataclass(frozen=True, eq=False)
class Data:
    """Samples as a Python program has them: `Data(x, y)`, or `Data(frame, label="y", client="who")`.

    `test` and `validation` mark the samples of these splits, one truth value per sample; a DataFrame has a column
    `split` instead. `client` names the client of each sample, or the column that does. Columns in
    `categories` become one feature per value, in sorted order, columns in `drop` are left out, and `missing="mean"`
    fills gaps as data.missing does.
    """

    x: Any
    y: Any = None
    label: str = "label"
    client: Any = None
    test: Any = None
    validation: Any = None
    categories: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: Missing = "refuse"
    #: Whether channels come first, as in tensors, in images where they could be first or last.
    channels_first: bool = False

    def samples(self, column: str | None, where: str) -> Samples:
        """Return the checked samples; `column` is partition.column, and `where` names the data in messages."""
        if isinstance(self.x, pd.DataFrame):
            extra = [name for name in ("y", "test", "validation") if getattr(self, name) is not None]
            if extra:
                raise InputError(
                    f"{where}: {extra[0]} goes with arrays: in a DataFrame, label= names the labels' column, and a"
                    " column 'split' says train, val or test"
                )
            if self.client is not None and not isinstance(self.client, str):
                raise InputError(f"{where}: client goes with a DataFrame as the name of a column")
            if self.missing not in get_args(Missing):
                raise InputError(f"{where}: missing={self.missing!r} is not allowed; allowed: {_MISSING}")
            columns = Columns(self.label, self.client, tuple(self.categories), tuple(self.drop), self.missing)
            return from_frame(self.x, columns, column, where)
        if column is not None:
            raise InputError(
                f"partition.column={column}: {where} has arrays, not columns: name the client of each sample in an"
                " array client, and leave partition.column out"
            )
        if self.categories or self.drop or self.missing != "refuse":
            raise InputError(f"{where}: categories, drop and missing are for a DataFrame, and there are only arrays")
        return from_arrays(self._arrays, where, self.channels_first)

    @property
    def _arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}

    def digest(self) -> str:
        """Return a digest that tells these data from others."""
        known = hashlib.blake2b(digest_size=16)
        if isinstance(self.x, pd.DataFrame):
            more = [] if self.missing == "refuse" else [self.missing]
            known.update(repr((self.label, self.client, list(self.categories), list(self.drop), *more)).encode())
            for name, values in self.x.items():
                try:
                    hashed = pd.util.hash_pandas_object(values, index=False)
                except TypeError:  # lists in the cells
                    hashed = pd.util.hash_pandas_object(values.map(lambda v: np.asarray(v).tobytes()), index=False)
                known.update(f"{name} {values.dtype}".encode() + hashed.to_numpy().tobytes())
            return known.hexdigest()
        known.update(b"channels first" if self.channels_first else b"")
        for name, values in self._arrays.items():
            array = as_array(values, name)
            if array.dtype.kind in "OT":
                array = np.array([str(value) for value in array])
            known.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return known.hexdigest()


def collected(value: Any, columns: Columns, where: str) -> Data:
    """Return the data that a user's object holds; a torch Dataset is read once."""
    if isinstance(value, Data):
        return value
    if isinstance(value, pd.DataFrame):
        return Data(value, **vars(columns))
    if isinstance(value, Mapping):
        check_names(value, where)
        if isinstance(value["x"], pd.DataFrame):
            return _labelled(where=where, **value)
        return Data(**value)
    if isinstance(value, tuple) and len(value) == 2:
        return _labelled(*value, where=where) if isinstance(value[0], pd.DataFrame) else Data(*value)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "dtype"):
        return _from_torch(value, where)
    if hasattr(value, "__getitem__") and hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        raise InputError(f"{where}: a data set that is only iterated over has no samples by number: {_FORMS}")
    raise InputError(f"{where} is a {type(value).__name__}: {_FORMS}")


def _labelled(x: pd.DataFrame, y: Any, where: str, **others: Any) -> Data:
    """Return features in a DataFrame and separate labels as one DataFrame."""
    if others:
        raise InputError(f"{where}: {next(iter(others))} goes with arrays: make it a column, and use rayfl.data.Data")
    labels = as_array(y, f"{where}: y")
    if labels.shape != (len(x),):
        raise InputError(f"{where}: y has shape {labels.shape}: it must have one label per row of x, {len(x)}")
    name = next(name for name in ("label", "y", *(f"label {n}" for n in range(len(x.columns) + 1))) if name not in x)
    return Data(x.assign(**{name: labels}), label=name)


def _from_torch(dataset: Any, where: str) -> Data:
    """Collect the pairs of a data set; transforms that draw random numbers draw once."""
    pairs = []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(
                f"{where}: item {number} is a {type(item).__name__}, not a pair of sample and label: {_FORMS}"
            )
        pairs.append(item)
    if not pairs:
        raise InputError(f"{where} has no samples: there is nothing to learn from")
    arrays = [as_array(x, f"{where}: item {number}") for number, (x, _) in enumerate(pairs)]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise InputError(
                f"{where}: item {number} has shape {array.shape} but item 0 {arrays[0].shape}: make them one shape"
            )
    labels = np.stack([as_array(y, f"{where}: the label of item {number}") for number, (_, y) in enumerate(pairs)])
    tensors = hasattr(pairs[0][0], "detach")
    return Data(_whole_pixels(np.stack(arrays)) if tensors else np.stack(arrays), labels, channels_first=tensors)


def _whole_pixels(images: np.ndarray) -> np.ndarray:
    """Return images in whole 255ths, as torchvision's ToTensor makes them, as uint8: a quarter of the memory."""
    if images.ndim < 3 or images.dtype.kind != "f" or images.min() < 0 or images.max() > 1:
        return images
    whole = np.rint(images * 255)
    return whole.astype(np.uint8) if np.abs(images * 255 - whole).max() < 1e-3 else images
