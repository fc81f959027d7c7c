"""A user's own arrays: what they are (images, features), and whose samples they hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from rayfl.data.dataset import Kind
from rayfl.data.sources.samples import Samples
from rayfl.errors import InputError, closest

#: The arrays by name: samples and labels; optionally which are for testing and validation, and their clients.
ARRAYS = ("x", "y", "test", "validation", "client")
_MOST_CHANNELS = 4


def from_arrays(arrays: Mapping[str, Any], where: str, channels_first: bool = False) -> Samples:
    """Return the samples in arrays that are called as in `ARRAYS`; `where` names them in messages.

    x is (N, features), or images: (N, H, W), (N, H, W, C) or (N, C, H, W), in whole numbers up to 255 or in floats.
    If the first and the last axis could both be C, the last one is, or with `channels_first` the first.
    """
    check_names(arrays, where)
    inputs, kind = inputs_of(as_array(arrays["x"], f"{where}: x"), f"{where}: x", channels_first)
    labels = as_array(arrays["y"], f"{where}: y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"{where}: y has shape {labels.shape}: it must have one label per sample")
    samples = len(inputs)
    _as_many(labels, samples, f"{where}: y")
    is_test = _mask(arrays.get("test"), samples, f"{where}: test")
    is_validation = _mask(arrays.get("validation"), samples, f"{where}: validation")
    if is_test is not None and is_validation is not None and (is_test & is_validation).any():
        raise InputError(f"{where}: sample {int(np.argmax(is_test & is_validation))} is marked in test and validation")
    owner, names = _clients(arrays.get("client"), samples, f"{where}: client")
    none = np.zeros(samples, bool)
    return Samples(
        inputs,
        labels,
        kind,
        none if is_test is None else is_test,
        owner,
        names,
        is_validation=is_validation if is_validation is not None and is_validation.any() else None,
    )


def check_names(arrays: Mapping[str, Any], where: str) -> None:
    """Refuse arrays of other names, and samples without labels."""
    unknown = [name for name in arrays if name not in ARRAYS]
    if unknown:
        hint = closest(str(unknown[0]), list(ARRAYS))
        raise InputError(f"{where}: there is no array '{unknown[0]}'{hint}; allowed: {', '.join(ARRAYS)}")
    for name in ("x", "y"):
        if arrays.get(name) is None:
            raise InputError(f"{where} has no array {name}: it needs the samples x and their labels y")


def as_array(values: Any, where: str) -> np.ndarray:
    """Return what a user gave, such as lists or objects of numpy, pandas or torch, as an array of numbers or text."""
    detach = getattr(values, "detach", None)  # a tensor, which may be on a GPU or have gradients
    try:
        array = np.asarray(detach().cpu() if callable(detach) else values)
    except Exception as error:
        raise InputError(f"{where} ({type(values).__name__}) is no array: {str(error).splitlines()[0]}") from None
    return array


def pixels_first(images: np.ndarray, last: bool) -> np.ndarray:
    """Return images (N, H, W) or (N, H, W, C), or with `last` false (N, C, H, W), as (N, C, H, W)."""
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if last else images


def inputs_of(x: np.ndarray, where: str, channels_first: bool = False) -> tuple[np.ndarray, Kind]:
    """Return the features or images in an array, checked, as (N, F) or (N, C, H, W), and their kind."""
    if x.dtype.kind not in "iufb":
        raise InputError(f"{where} is of type {x.dtype}: it must hold numbers")
    if not 1 <= x.ndim <= 4 or len(x) == 0 or 0 in x.shape:
        raise InputError(
            f"{where} has shape {x.shape}: it must be (samples, features), or images (N, H, W), (N, H, W, C) or"
            " (N, C, H, W)"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        numbers = x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)
    if not np.isfinite(numbers).all():
        rows = np.flatnonzero(~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
        raise InputError(
            f"{where}: {len(rows)} samples have missing or infinite values, the first is sample {rows[0]}: fill them in"
            " or leave the samples out (float32 ends at 3.4e38)"
        )
    if x.ndim <= 2:
        return numbers.reshape(len(x), -1), "vector"
    if x.ndim == 4:
        first, last = x.shape[1] <= _MOST_CHANNELS, x.shape[3] <= _MOST_CHANNELS
        if not first and not last:
            raise InputError(f"{where} has shape {x.shape}: images have at most {_MOST_CHANNELS} channels")
        numbers = pixels_first(numbers, last=last and not (channels_first and first))
    else:
        numbers = pixels_first(numbers, last=True)
    if x.dtype.kind in "iu" and x.dtype != np.uint8 and numbers.min() >= 0 and numbers.max() <= 255:
        numbers = numbers.astype(np.uint8)  # whole pixels, as files of images have them
    return numbers, "image"


def _mask(values: Any, samples: int, where: str) -> np.ndarray | None:
    if values is None:
        return None
    mask = as_array(values, where)
    _as_many(mask, samples, where)
    if mask.ndim != 1 or mask.dtype != bool:
        raise InputError(f"{where} is of type {mask.dtype} and shape {mask.shape}: it must be true or false per sample")
    return mask


def _clients(values: Any, samples: int, where: str) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Number the clients in the sorted order of their names."""
    if values is None:
        return None, None
    clients = as_array(values, where)
    _as_many(clients, samples, where)
    if clients.ndim != 1 or pd.isna(clients).any():
        raise InputError(f"{where} must name the client of each sample, without gaps")
    if clients.dtype.kind == "O":
        clients = np.array([str(client) for client in clients], dtype=object)
    names, owner = np.unique(clients, return_inverse=True)
    return owner.astype(np.int32), tuple(str(name) for name in names.tolist())


def _as_many(values: np.ndarray, samples: int, where: str) -> None:
    if values.ndim == 0 or len(values) != samples:
        found = len(values) if values.ndim else 1
        raise InputError(f"{where} has {found} values for {samples} samples: the two numbers must be equal")
