"""More or less contrast."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature, in_256ths, pixel_table


@dataclass(frozen=True)
class Contrast(Feature):
    """Pixels moved to `factor` times their distance from middle grey, 128.

    >>> Contrast(0.5).apply(np.array([[[[0, 128, 228]]]], np.uint8), np.array([0])).tolist()
    [[[[64, 128, 178]]]]
    """

    name: ClassVar[str] = "contrast"

    factor: float = 1.0

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return in_256ths(self.factor) == 256

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the images with more or less contrast."""
        values = np.arange(256) - 128
        return pixel_table(128 + (values * in_256ths(self.factor) + 128 >> 8))[inputs]
