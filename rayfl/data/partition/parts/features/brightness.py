"""Brighter or darker images."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature, pixel_table


@dataclass(frozen=True)
class Brightness(Feature):
    """Pixels with `shift` added, within 0 and 255.

    >>> Brightness(60).apply(np.array([[[[0, 100, 250]]]], np.uint8), np.array([0])).tolist()
    [[[[60, 160, 255]]]]
    """

    name: ClassVar[str] = "brightness"

    shift: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return round(self.shift) == 0

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the brighter or darker images."""
        return pixel_table(np.arange(256) + round(self.shift))[inputs]
