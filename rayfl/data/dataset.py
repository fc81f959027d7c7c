"""All samples of a run as compact arrays, and the batches made of them.

The arrays go once per node into shared memory, so they may be read-only and nothing here writes to them.
Where they come from stands in `sources`, who gets which in `partitions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Kind = Literal["image", "vector", "text"]


@dataclass(frozen=True)
class Transform:
    """What sets a planted cluster apart. Applied to each batch on raw values, never stored.

    `turns` are quarter turns against the clock, `labels[c]` is the new label of class c.
    """

    turns: int = 0
    invert: bool = False
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Dataset:
    """All samples. Sample i is row i of `inputs`, or for text the window that starts at `starts[i]`.

    `inputs` are uint8 (N, C, H, W) for images, float32 (N, F) for vectors, one stream of character codes (T,)
    for text. `x * scale + shift`, per channel or feature, has mean 0 and deviation 1 over the samples outside
    the source's own test split. `owner[i]` numbers the person a sample belongs to, where the source tells.
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

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model sees it: (C, H, W), (F,) or (window,)."""
        return (self.window,) if self.kind == "text" else self.inputs.shape[1:]

    @property
    def vocabulary(self) -> int | None:
        """How many characters a text has, so how many codes a model must know; None if this is no text."""
        return self.classes if self.kind == "text" else None

    def batch(
        self, indices: np.ndarray | Sequence[int], transform: Transform | None = None
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the inputs, normalised float32 (text: long codes), and the long labels of these samples.

        >>> data = Dataset(np.array([[1.0], [3.0]], np.float32), np.array([0, 1], np.uint8), 2, "vector",
        ...                np.zeros(2, bool), shift=np.float32([-2]), scale=np.float32([1]))
        >>> data.batch([1, 0])[0].tolist()
        [[1.0], [-1.0]]
        """
        import torch  # here, since who only deals samples out needs none of it

        chosen = np.asarray(indices, dtype=np.intp)
        labels = self.labels.take(chosen).astype(np.int64)
        if transform is not None and transform.labels is not None:
            labels = np.asarray(transform.labels, dtype=np.int64)[labels]
        if self.kind == "text":
            assert self.starts is not None
            positions = self.starts.take(chosen).astype(np.intp)[:, None] + np.arange(self.window)
            return torch.from_numpy(self.inputs.take(positions).astype(np.int64)), torch.from_numpy(labels)
        # take() copies, so what follows may work in place. In numpy, because on batches of small images the
        # calls cost more than the arithmetic, and there a turn is a view.
        inputs = self.inputs.take(chosen, axis=0)
        shift, scale = self.shift, self.scale
        if self.kind == "image":
            shift, scale = shift[:, None, None], scale[:, None, None]
            if transform is not None and transform.turns % 4:
                inputs = np.rot90(inputs, transform.turns, axes=(2, 3))
            if transform is not None and transform.invert:
                inputs = np.bitwise_not(inputs)  # 255 - x
            inputs = inputs.astype(np.float32, order="C")
        inputs *= scale
        inputs += shift
        return torch.from_numpy(inputs), torch.from_numpy(labels)


def smallest_unsigned(values: np.ndarray, largest: int) -> np.ndarray:
    """Return the values in the smallest unsigned integer type that holds `largest`."""
    return values.astype(np.min_scalar_type(largest))
