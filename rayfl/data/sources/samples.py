"""What every source yields, and how it becomes a `Dataset`: labels checked, cut to data.limit, normalised."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import pandas as pd

from rayfl.config import DataConfig
from rayfl.data.dataset import Dataset, Kind, Targets, smallest_unsigned
from rayfl.errors import InputError, shown
from rayfl.randomness import Purpose, generator

_MOST_CLASSES = 65_536
_LIMIT_STREAM = 1  # keeps the draw of data.limit apart from the partition's own random numbers


@dataclass(frozen=True)
class Samples:
    """What a source yields before it is checked, normalised and cut to data.limit. Labels may be text."""

    inputs: np.ndarray
    labels: np.ndarray
    kind: Kind
    is_test: np.ndarray
    owner: np.ndarray | None = None
    owner_names: tuple[str, ...] | None = None
    starts: np.ndarray | None = None
    window: int = 0
    classes: int = 0  # 0: as many as the labels show
    is_validation: np.ndarray | None = None  # None: the source has no such split
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()  # what a user should know about how the data were read, a line each


class Source(Protocol):
    """A kind of data: reads the samples that the keys of its section name."""

    #: Whether labels may be numbers to predict, rather than classes.
    numbers: bool
    #: Whether the source can tell whose sample is whose.
    owners: bool

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all samples; `column` says whose they are, for partitions by owner."""


def finished(samples: Samples, config: DataConfig, seed: int, targets: Targets, where: str) -> Dataset:
    """Check the labels, draw data.limit samples and normalise."""
    if targets == "number":
        samples = replace(samples, labels=_checked_numbers(samples.labels, where), classes=1, class_names=None)
    else:
        labels, names = _checked_classes(samples.labels, where)
        classes = max(samples.classes, int(labels.max()) + 1)
        samples = replace(
            samples,
            labels=smallest_unsigned(labels, classes - 1),
            classes=classes,
            class_names=samples.class_names or names,
        )
    if config.limit is not None and config.limit < len(samples.labels):
        samples = _limited(samples, config.limit, seed)
    shift, scale = _normalisation(samples, config.normalise)
    arrays = vars(samples) | {"inputs": np.ascontiguousarray(samples.inputs)}
    return Dataset(shift=shift, scale=scale, targets=targets, **arrays)


def _checked_classes(labels: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return the labels as numbers from 0, and their names if they are text."""
    names = None
    if len(labels) == 0:
        raise InputError(f"{where} has no samples: there is nothing to learn from")
    if labels.dtype.kind in "OUST":
        missing = int(pd.isna(labels).sum())
        if missing:
            raise InputError(f"{where}: {missing} samples have no label: fill them in or leave the samples out")
        found, labels = np.unique(np.array([str(label) for label in labels], dtype=object), return_inverse=True)
        names = tuple(found.tolist())
    if labels.dtype.kind not in "iufb":
        raise InputError(f"{where}: the labels are of type {labels.dtype}: they must be whole numbers from 0")
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
        bad = labels[~np.isfinite(labels) | (labels != np.floor(labels))][0]
        raise InputError(
            f"{where}: the label {bad} is not a whole number: number the classes 0, 1, 2, ..., or predict numbers with"
            " task=regression"
        )
    labels = labels.astype(np.int64)
    if labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(
            f"{where}: the label {bad} is not between 0 and {_MOST_CLASSES - 1}: number the classes 0, 1, 2, ..."
        )
    if labels.min() == labels.max():
        raise InputError(
            f"{where}: all {len(labels)} samples have the label {labels[0]}: there must be at least two classes"
        )
    return labels, names


def _checked_numbers(labels: np.ndarray, where: str) -> np.ndarray:
    if len(labels) == 0:
        raise InputError(f"{where} has no samples: there is nothing to learn from")
    if labels.dtype.kind not in "iufb":
        first = next((label for label in labels if isinstance(label, str)), labels[0])
        raise InputError(
            f"{where}: the label {shown(str(first))} is not a number: a task that predicts numbers needs some"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        numbers = labels.astype(np.float32)
    if not np.isfinite(numbers).all():
        rows = np.flatnonzero(~np.isfinite(numbers))
        raise InputError(
            f"{where}: {len(rows)} samples have missing or infinite labels, the first is sample {rows[0]}: fill them in"
            " or leave the samples out (float32 ends at 3.4e38)"
        )
    return numbers


def _limited(samples: Samples, limit: int, seed: int) -> Samples:
    chosen = np.sort(generator(seed, Purpose.PARTITION, _LIMIT_STREAM).permutation(len(samples.labels))[:limit])

    def rows(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[chosen]

    return replace(
        samples,
        inputs=samples.inputs if samples.kind == "text" else samples.inputs[chosen],
        labels=samples.labels[chosen],
        is_test=samples.is_test[chosen],
        owner=rows(samples.owner),
        starts=rows(samples.starts),
        is_validation=rows(samples.is_validation),
    )


def _normalisation(samples: Samples, how: Literal["standard", "half", "none"]) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale of `x * scale + shift`: mean 0 and deviation 1, or as data.normalise says."""
    if samples.kind == "text":
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    whole_pixels = samples.kind == "image" and samples.inputs.dtype == np.uint8
    if how != "standard":
        channels = samples.inputs.shape[1]
        largest = 255 if whole_pixels else 1
        shift, factor = (-1.0, 2 / largest) if how == "half" else (0.0, 1 / largest)
        return np.full(channels, shift, np.float32), np.full(channels, factor, np.float32)
    inputs = samples.inputs if samples.is_test.all() else samples.inputs[~samples.is_test]
    if whole_pixels:
        # From whole-number histograms: exact on any machine, without a float copy of the images.
        values = np.arange(256, dtype=np.float64)
        counts = np.stack([np.bincount(inputs[:, c].ravel(), minlength=256) for c in range(inputs.shape[1])])
        mean = counts @ values / counts.sum(1)
        deviation = np.sqrt(np.maximum(counts @ values**2 / counts.sum(1) - mean**2, 0))
    else:
        over = (0, 2, 3) if samples.kind == "image" else 0
        mean = inputs.mean(axis=over, dtype=np.float64)
        deviation = inputs.std(axis=over, dtype=np.float64)
    scale = 1 / np.where(deviation > 1e-12, deviation, 1.0)
    return (-mean * scale).astype(np.float32), scale.astype(np.float32)


def validation_split(split_of: np.ndarray) -> np.ndarray | None:
    """Mark the samples of the source's own validation split; None if it has none."""
    found = split_of == "val"
    return found if found.any() else None


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or its kind."""
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)
