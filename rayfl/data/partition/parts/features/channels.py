"""Colour channels in another order."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.partition.parts.features.feature import Feature
from rayfl.errors import InputError


@dataclass(frozen=True)
class Channels(Feature):
    """Channel i of the image is what was channel `order[i]`.

    >>> Channels((2, 1, 0)).apply(np.array([[[[1]], [[2]], [[3]]]], np.uint8), np.array([0])).tolist()
    [[[[3]], [[2]], [[1]]]]
    """

    name: ClassVar[str] = "channels"
    needs: ClassVar[Literal["pixels", "image", "array"]] = "image"

    order: tuple[int, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return self.order == tuple(range(len(self.order)))

    def check(self, dataset: Dataset, key: str) -> None:
        """Refuse an order that does not name each channel of these images once."""
        super().check(dataset, key)
        channels = dataset.input_shape[0]
        if sorted(self.order) != list(range(channels)):
            raise InputError(
                f"{key}: order={list(self.order)} must name each of the {channels} channels of these images once, 0 to"
                f" {channels - 1}"
            )

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the images with their channels in this order."""
        return inputs[:, list(self.order)]
