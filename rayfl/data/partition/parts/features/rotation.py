"""Images that are turned, by any angle."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.dataset import Dataset, rotated
from rayfl.data.partition.parts.features.feature import Feature
from rayfl.errors import InputError


@dataclass(frozen=True)
class Rotation(Feature):
    """Turned anticlockwise by `angle` degrees: quarter turns exactly, the rest interpolated, black beyond the edge.

    >>> Rotation(90).apply(np.array([[[[0, 1], [2, 3]]]], np.uint8), np.array([0])).tolist()
    [[[[1, 3], [0, 2]]]]
    """

    name: ClassVar[str] = "rotation"
    needs: ClassVar[Literal["pixels", "image", "array"]] = "image"

    angle: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "angle", round(self.angle, 6) % 360)  # so that equal turns compare as equal

    @property
    def nothing(self) -> bool:
        """Whether it leaves images as they are."""
        return self._parts == (0, 0)

    @property
    def _parts(self) -> tuple[int, float]:
        """Quarter turns, and the degrees that are left."""
        turns, degrees = divmod(self.angle, 90)
        return int(turns), degrees

    def check(self, dataset: Dataset, key: str) -> None:
        """Refuse non-images, non-square images unless turned by 180, and pixels that cannot be interpolated exactly."""
        super().check(dataset, key)
        turns, degrees = self._parts
        _, height, width = dataset.input_shape
        if height != width and (turns % 2 or degrees):
            raise InputError(
                f"{key}: rotation by {self.angle:g} needs square images, these are {width} x {height}: use 180"
            )
        if degrees and dataset.inputs.dtype != np.uint8:
            raise InputError(
                f"{key}: rotation by {self.angle:g} needs pixels in whole numbers from 0 to 255, these are"
                f" {dataset.inputs.dtype}: give them as uint8, or turn by whole quarters"
            )

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the turned images."""
        turns, degrees = self._parts
        turned = np.rot90(inputs, turns, axes=(2, 3)) if turns else inputs
        return rotated(turned, degrees) if degrees else turned
