"""All samples of a run as compact arrays, and the batches made of them.

The arrays go once per node into shared memory, so they may be read-only and nothing here writes to them.
`sources` makes the arrays, and `partition` decides who gets which samples.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

Kind = Literal["image", "vector", "text"]
#: What is learned about a sample: its class, or a number.
Targets = Literal["class", "number"]


class Step(Protocol):
    """One operation on inputs, held as plain data. See `partition.parts.features`."""

    @property
    def inverts(self) -> bool:
        """Whether the step turns each pixel x into 255 - x."""
        ...

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the changed raw inputs (n, ...); `samples` are the numbers of their samples."""
        ...


@dataclass(frozen=True)
class Transform:
    """What sets a planted cluster, or a client, apart. Applied to raw values of each batch, never stored.

    `turns` are exact anticlockwise quarter turns, and `degrees` a further, interpolated rotation by less than 90
    degrees; `labels[c]` is the new label of class c. Then come the `steps`, in their order.
    """

    turns: int = 0
    invert: bool = False
    labels: tuple[int, ...] | None = None
    degrees: float = 0.0
    steps: tuple[Step, ...] = ()

    def __repr__(self) -> str:
        # Fingerprints of partitions use this text, and must not change for transforms from before there were steps.
        steps = f", steps={self.steps!r}" if self.steps else ""
        return (
            f"Transform(turns={self.turns!r}, invert={self.invert!r}, labels={self.labels!r}, degrees={self.degrees!r}"
            f"{steps})"
        )

    @property
    def costs(self) -> bool:
        """Whether the transform is slow enough to keep its results; quarter turns and inversion are not."""
        return bool(self.degrees or self.steps)

    @property
    def inverts(self) -> bool:
        """Whether pixels end up inverted, by `invert` or by steps; two inversions cancel."""
        return bool((self.invert + sum(step.inverts for step in self.steps)) % 2)

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return raw images or vectors of these samples as they are seen through the transform."""
        if self.turns % 4:
            inputs = np.rot90(inputs, self.turns, axes=(2, 3))
        if self.degrees:
            inputs = rotated(inputs, self.degrees)
        if self.invert:
            inputs = np.bitwise_not(inputs)  # 255 - x
        for step in self.steps:
            inputs = step.apply(inputs, samples)
        return inputs


@dataclass(frozen=True)
class Dataset:
    """All samples. Sample i is row i of `inputs`, or for text the window that starts at `starts[i]`.

    `inputs` are uint8 or float32 (N, C, H, W) for images, float32 (N, F) for vectors, one stream of character codes
    (T,) for text. `labels` are classes, or with `targets="number"` float32, and `classes` is then 1. Models see
    `x * scale + shift`, per channel or feature: by default with mean 0 and deviation 1 over the samples outside the
    source's own test split. `owner[i]` is the number of the owner of sample i, and `is_validation` marks the source's
    own validation split; both are None if the source has none. Classes and features may have names; `notes` are lines
    that say what a user should know about how the data were read.
    """

    inputs: np.ndarray
    labels: np.ndarray
    classes: int
    kind: Kind
    is_test: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    owner: np.ndarray | None = None
    owner_names: tuple[str, ...] | None = None
    starts: np.ndarray | None = None
    window: int = 0
    is_validation: np.ndarray | None = None
    targets: Targets = "class"
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model sees it: (C, H, W), (F,) or (window,)."""
        return (self.window,) if self.kind == "text" else self.inputs.shape[1:]

    @property
    def class_of(self) -> np.ndarray:
        """The class of each sample; where labels are numbers, all samples have class 0."""
        return self.labels if self.targets == "class" else np.zeros(len(self.labels), np.uint8)

    @property
    def vocabulary(self) -> int | None:
        """How many different characters a text has, each with a code that a model reads; None if this is no text."""
        return self.classes if self.kind == "text" else None

    def seen(self, samples: np.ndarray, transform: Transform | None) -> np.ndarray:
        """Return a copy of raw images or vectors as they are seen through a transform; the copy may be written to."""
        inputs = self.inputs.take(samples, axis=0)
        return inputs if transform is None else transform.apply(inputs, samples)

    def batch(
        self,
        indices: np.ndarray | Sequence[int],
        transform: Transform | None = None,
        seen: Callable[[np.ndarray, Transform], np.ndarray] | None = None,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the inputs, normalised float32 (text: long codes), and the long or float32 labels of these samples.

        `seen` may return stored results of a slow transform, as a fresh array; default: `self.seen`.

        >>> data = Dataset(np.array([[1.0], [3.0]], np.float32), np.array([0, 1], np.uint8), 2, "vector",
        ...                np.zeros(2, bool), shift=np.float32([-2]), scale=np.float32([1]))
        >>> data.batch([1, 0])[0].tolist()
        [[1.0], [-1.0]]
        """
        import torch  # here, because dealing samples out does not need torch

        chosen = np.asarray(indices, dtype=np.intp)
        labels = self.labels.take(chosen).astype(np.int64 if self.targets == "class" else np.float32)
        if transform is not None and transform.labels is not None:
            labels = np.asarray(transform.labels, dtype=np.int64)[labels]
        if self.kind == "text":
            assert self.starts is not None
            positions = self.starts.take(chosen).astype(np.intp)[:, None] + np.arange(self.window)
            return torch.from_numpy(self.inputs.take(positions).astype(np.int64)), torch.from_numpy(labels)
        # The inputs are copies, so they may be changed in place. This is done in numpy, because on batches of small
        # images the calls cost more than the arithmetic, and in numpy a quarter turn is only a view.
        known = transform is not None and transform.costs and seen is not None
        inputs = seen(chosen, transform) if known else self.seen(chosen, transform)  # type: ignore[misc, arg-type]
        shift, scale = self.shift, self.scale
        if self.kind == "image":
            shift, scale = shift[:, None, None], scale[:, None, None]
            inputs = inputs.astype(np.float32, order="C")
        inputs *= scale
        inputs += shift
        return torch.from_numpy(inputs), torch.from_numpy(labels)


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """Return uint8 images (N, C, H, W) turned anticlockwise about their middle, black where there was no pixel.

    The interpolation is bilinear, in whole numbers, so that the bits are the same on any machine.

    >>> rotated(np.array([[[[0, 1], [2, 3]]]], np.uint8), 90.0).tolist()
    [[[[1, 3], [0, 2]]]]
    """
    count, channels, height, width = images.shape
    places, weights = _neighbours(height, width, degrees)
    flat = images.reshape(count, channels, height * width)
    # Weights add up to at most 256, so sums stay below 2**16.
    total = np.full(flat.shape, _WHOLE // 2, np.uint16)
    for place, weight in zip(places, weights, strict=True):
        total += flat.take(place, axis=2) * weight
    return (total // _WHOLE).astype(np.uint8).reshape(images.shape)


_WHOLE = 256  # what the weights of a pixel's four neighbours add up to


@lru_cache(maxsize=64)
def _neighbours(height: int, width: int, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each pixel of a turned image, the four source pixels around it, and their weights (4, H * W)."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = np.divmod(np.arange(height * width), width)
    y, x = y - middle_y, x - middle_x
    # Where the pixel comes from; rows are counted downwards. Rounded, since sines may differ in their last bits from
    # machine to machine.
    from_y = np.round(middle_y + cos * y + sin * x, 9)
    from_x = np.round(middle_x - sin * y + cos * x, 9)
    top, left = np.floor(from_y), np.floor(from_x)
    down, right = from_y - top, from_x - left
    rows = np.stack([top, top, top + 1, top + 1]).astype(np.intp)
    columns = np.stack([left, left + 1, left, left + 1]).astype(np.intp)
    exact = np.stack([(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right])
    weights = np.rint(exact * _WHOLE).astype(np.int64)
    np.put_along_axis(weights, weights.argmax(axis=0)[None], _WHOLE - weights.sum(axis=0) + weights.max(axis=0), axis=0)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    places = np.where(inside, rows * width + columns, 0)
    return places, np.where(inside, weights, 0).astype(np.uint16)


def smallest_unsigned(values: np.ndarray, largest: int) -> np.ndarray:
    """Return the values in the smallest unsigned integer type that holds `largest`."""
    return values.astype(np.min_scalar_type(largest))
