"""Hugging Face data sets: which columns are inputs, labels and clients, and how they become samples."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rayfl.config import DataConfig
from rayfl.config.data import HuggingFaceData
from rayfl.data.sources.arrays import inputs_of
from rayfl.data.sources.hub import read_splits
from rayfl.data.sources.hub_text import read_text
from rayfl.data.sources.owners import need_columns, owner_columns_of
from rayfl.data.sources.pixels import stacked_images
from rayfl.data.sources.samples import Samples
from rayfl.data.sources.tables import Columns, described, from_table
from rayfl.errors import InputError

_ROWS = 256  # images that are read from the file at once


class HuggingFace:
    """A data set of the hub, of a folder, or of Parquet files."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all rows of data.path."""
        assert isinstance(config, HuggingFaceData)
        data, split_of = read_splits(config)
        owners = [name for key in (column, config.client) for name in owner_columns_of(data.column_names, key)]
        inputs = _input_columns(data, config, owners)
        if len(inputs) == 1 and _is_text(data.features[inputs[0]]) and inputs[0] not in config.categories:
            return read_text(data, inputs[0], config, column, split_of)
        if config.window is not None:
            raise InputError(f"data.window={config.window} is for text, and {', '.join(inputs)} has none: remove it")
        label = _label_column(data, config, {*owners, *inputs})
        columns = Columns(label, config.client, tuple(config.categories), tuple(config.drop), config.missing)
        if len(inputs) == 1 and _is_picture(data.features[inputs[0]]):
            return self._pictures(data, inputs[0], columns, column, config, split_of)
        if inputs:
            needed = dict.fromkeys([*inputs, label, *(name for name in owners if name in data.column_names)])
            data = data.select_columns(list(needed))
        samples = from_table(_arrow(data), columns, column, config.place, split_of=split_of)
        return _with_classes(samples, data.features[label], split_of, config.place)

    def _pictures(
        self,
        data: Any,
        name: str,
        columns: Columns,
        column: str | None,
        config: HuggingFaceData,
        split_of: np.ndarray,
    ) -> Samples:
        for key in ("categories", "drop"):
            if getattr(config, key):
                raise InputError(f"data.{key} is for tables, and data.input={name} holds images: remove it")
        others = data.select_columns([other for other in data.column_names if other != name])
        about = described(_arrow(others), columns, column, config.place, split_of)
        place = f"{config.place}: column '{name}'"
        if _is_image(data.features[name]):
            samples = about.samples(stacked_images(_images(data, name), config.size, place), "image")
        else:
            arrays = data.with_format("numpy", columns=[name])[:][name]
            if arrays.dtype == object:
                raise InputError(f"{place} has arrays of different shapes: make them one shape")
            if config.size is not None:
                raise InputError(f"data.size={config.size} is for images, and {place} holds arrays: resize them before")
            samples = about.samples(*inputs_of(arrays, place))
        return _with_classes(samples, data.features[columns.label], split_of, config.place)


def _input_columns(data: Any, config: HuggingFaceData, owners: list[str]) -> list[str]:
    """Return data.input, else the one column of images, else the only one left; an empty list: all that are left."""
    import datasets

    need_columns(data.column_names, config.input, config.place, "data.input")
    if config.input:
        return config.input
    taken = {config.label or "label", *owners, *config.drop}
    free = {name: kind for name, kind in data.features.items() if name not in taken}
    images = [name for name, kind in free.items() if _is_picture(kind)]
    if len(images) > 1:
        raise InputError(f"{config.place} has images in {', '.join(images)}: say which with data.input")
    others = [name for name, kind in free.items() if not isinstance(kind, datasets.ClassLabel)]
    return images or (others if len(others) == 1 else [])


def _label_column(data: Any, config: HuggingFaceData, taken: set[str]) -> str:
    import datasets

    if config.label is not None:
        need_columns(data.column_names, [config.label], config.place, "data.label")
        return config.label
    free = [name for name in data.column_names if name not in taken]
    classes = [name for name in free if isinstance(data.features[name], datasets.ClassLabel)]
    if len(classes) == 1:
        return classes[0]
    if not classes and "label" in free:
        return "label"
    several = f"has classes in {', '.join(classes)}" if classes else "does not say which column has the labels"
    columns = ", ".join(f"{name} ({_kind(data.features[name])})" for name in data.column_names)
    raise InputError(f"{config.place} {several}: name one with data.label; there are {columns}")


def _with_classes(samples: Samples, kind: Any, split_of: np.ndarray, where: str) -> Samples:
    """Add the names of classes, where the data set has them."""
    import datasets

    if not isinstance(kind, datasets.ClassLabel):
        return samples
    hidden = samples.labels < 0  # this is how the hub hides the labels of a test split
    if hidden.any():
        splits = ", ".join({"val": "validation"}.get(split, split) for split in np.unique(split_of[hidden]))
        raise InputError(
            f"{where}: {int(hidden.sum())} rows have the label -1, which means none, in {splits}: leave that split out"
            " with data.splits"
        )
    return replace(samples, classes=kind.num_classes, class_names=tuple(kind.names))


def _images(data: Any, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each image as its name for messages and a function that opens it."""
    import datasets

    kind = datasets.Image()
    closed = data.select_columns([name]).cast_column(name, datasets.Image(decode=False))
    number = 0
    for batch in closed.iter(_ROWS):
        for value in batch[name]:
            yield f"row {number}", partial(_opened, kind, value)
            number += 1


def _opened(kind: Any, value: dict[str, Any] | None) -> Any:
    if value is None:
        raise ValueError("it is missing")
    return kind.decode_example(value)


def _arrow(data: Any) -> Any:
    return data.with_format("arrow")[:]


def _is_picture(kind: Any) -> bool:
    """Whether each row has an image, or an array of at least two dimensions."""
    import datasets

    arrays = (datasets.Array2D, datasets.Array3D)
    nested = isinstance(kind, datasets.List) and isinstance(kind.feature, datasets.List)
    return _is_image(kind) or isinstance(kind, arrays) or nested


def _is_image(kind: Any) -> bool:
    """Whether this is an image, also where a Parquet file does not say so itself."""
    import datasets

    return isinstance(kind, datasets.Image) or (isinstance(kind, dict) and set(kind) == {"bytes", "path"})


def _is_text(kind: Any) -> bool:
    return getattr(kind, "dtype", None) in ("string", "large_string")


def _kind(kind: Any) -> str:
    return str(getattr(kind, "dtype", type(kind).__name__)) if not isinstance(kind, dict) else "struct"
