"""Pixels, or the features of a vector, in a drawn order."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature


@dataclass(frozen=True)
class PixelPermutation(Feature):
    """All pixels of an image, the same way in each channel, or all features of a vector, in an order drawn by `seed`.

    >>> PixelPermutation(seed=2).apply(np.array([[0.0, 1.0, 2.0, 3.0]], np.float32), np.array([0])).tolist()
    [[3.0, 2.0, 0.0, 1.0]]
    """

    name: ClassVar[str] = "permutation"
    needs: ClassVar[Literal["pixels", "image", "array"]] = "array"
    seeded: ClassVar[Literal["no", "part", "each"]] = "each"

    seed: int = 0

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the inputs in the drawn order."""
        places = inputs.shape[2:] if inputs.ndim == 4 else inputs.shape[1:]
        flat = inputs.reshape(*inputs.shape[: inputs.ndim - len(places)], -1)
        return flat.take(_order(self.seed, flat.shape[-1]), axis=-1).reshape(inputs.shape)


@lru_cache(maxsize=256)
def _order(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)
