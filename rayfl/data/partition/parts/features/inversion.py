"""Inverted pixels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature


@dataclass(frozen=True)
class Inversion(Feature):
    """Negative images: each pixel x becomes 255 - x.

    >>> Inversion().apply(np.array([[[[0, 100, 255]]]], np.uint8), np.array([0])).tolist()
    [[[[255, 155, 0]]]]
    """

    name: ClassVar[str] = "inversion"

    @property
    def inverts(self) -> bool:
        """It always does."""
        return True

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the inverted images."""
        return np.bitwise_not(inputs)
