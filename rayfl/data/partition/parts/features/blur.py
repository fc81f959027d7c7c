"""Blurred images."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature

_WHOLE = 1024  # what the weights of a pixel's neighbours add up to


@dataclass(frozen=True)
class Blur(Feature):
    """Blurred by a Gaussian of `sigma` pixels, in whole numbers; beyond the edge, the pixels at the edge are repeated.

    >>> Blur(1.0).apply(np.array([[[[0, 0, 255, 0, 0]]]], np.uint8), np.array([0])).tolist()
    [[[[14, 62, 102, 62, 14]]]]
    """

    name: ClassVar[str] = "blur"

    sigma: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return len(_weights(self.sigma)) == 1

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the blurred images: first along rows, then along columns."""
        return _along(_along(inputs, 3, self.sigma), 2, self.sigma)


def _along(images: np.ndarray, axis: int, sigma: float) -> np.ndarray:
    weights = _weights(sigma)
    size, reach = images.shape[axis], len(weights) // 2
    total = np.full(images.shape, _WHOLE // 2, np.uint32)
    for offset, weight in enumerate(weights):
        places = np.clip(np.arange(size) + offset - reach, 0, size - 1)
        total += images.take(places, axis=axis) * np.uint32(weight)
    return (total // _WHOLE).astype(np.uint8)


@lru_cache(maxsize=256)
def _weights(sigma: float) -> tuple[int, ...]:
    """Return the weights of a pixel's neighbours along one axis, from one side to the other."""
    reach = math.ceil(3 * sigma)
    # Rounded, since exponentials may differ in their last bits from machine to machine.
    exact = [round(math.exp(-0.5 * (x / sigma) ** 2), 9) if sigma else 1.0 for x in range(-reach, reach + 1)]
    weights = [round(w / sum(exact) * _WHOLE) for w in exact]
    weights[reach] += _WHOLE - sum(weights)
    return tuple(weights) if reach and weights[reach] < _WHOLE else (_WHOLE,)
