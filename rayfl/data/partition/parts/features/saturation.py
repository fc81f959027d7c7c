"""More or less colour."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.partition.parts.features.feature import Feature, in_256ths
from rayfl.errors import InputError


@dataclass(frozen=True)
class Saturation(Feature):
    """Channels moved to `factor` times their distance from the grey of the pixel: 0 is grey, 1 changes nothing.

    >>> Saturation(0.0).apply(np.array([[[[200]], [[100]], [[0]]]], np.uint8), np.array([0])).tolist()
    [[[[118]], [[118]], [[118]]]]
    """

    name: ClassVar[str] = "saturation"

    factor: float = 1.0

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return in_256ths(self.factor) == 256

    def check(self, dataset: Dataset, key: str) -> None:
        """Refuse images that are not in colour."""
        super().check(dataset, key)
        if dataset.input_shape[0] != 3:
            raise InputError(
                f"{key}: saturation needs the three channels of colour images, these have {dataset.input_shape[0]}: use"
                " contrast or brightness"
            )

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the images with more or less colour."""
        pixels = inputs.astype(np.int32)
        # The weights of red, green and blue in brightness, in 256ths.
        grey = (77 * pixels[:, :1] + 150 * pixels[:, 1:2] + 29 * pixels[:, 2:3]) >> 8
        moved = grey + ((pixels - grey) * in_256ths(self.factor) + 128 >> 8)
        return np.clip(moved, 0, 255).astype(np.uint8)
