"""What a feature part is. A user's own is a subclass of `Feature`, or a function, named by its import path."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.errors import InputError


@dataclass(frozen=True)
class Feature:
    """One operation on raw inputs: uint8 or float32 images (n, C, H, W), or float32 vectors (n, F).

    Its fields are the part's keys in a config, one value each. The result for a sample may depend only on the
    sample, its number and the fields, so that it is the same in every batch and on every machine.
    """

    #: The name in a config.
    name: ClassVar[str] = ""
    #: What inputs must be: pixels are uint8 images, image is any image, array is any image or vector.
    needs: ClassVar[Literal["pixels", "image", "array"]] = "pixels"
    #: Who shares a drawn field `seed`, which is no key of a config. no: there is none; part: all clusters and clients
    #: share one; each: each cluster (or client) has its own.
    seeded: ClassVar[Literal["no", "part", "each"]] = "no"

    @property
    def nothing(self) -> bool:
        """Whether it leaves inputs as they are."""
        return False

    @property
    def inverts(self) -> bool:
        """Whether it turns each pixel x into 255 - x."""
        return False

    def check(self, dataset: Dataset, key: str) -> None:
        """Refuse data that the feature cannot be applied to; `key` is where the config asks for the feature."""
        if dataset.kind == "text":
            raise InputError(f"{key}: {self.name} is for images or vectors, and this source has text: remove it")
        if self.needs != "array" and dataset.kind != "image":
            raise InputError(
                f"{key}: {self.name} needs images, and this source has {dataset.kind} samples: use noise, permutation"
                " or a function of your own"
            )
        if self.needs == "pixels" and dataset.inputs.dtype != np.uint8:
            raise InputError(
                f"{key}: {self.name} needs pixels in whole numbers from 0 to 255, these are {dataset.inputs.dtype}:"
                " give them as uint8"
            )

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the changed inputs; `samples` are the numbers of their samples."""
        raise NotImplementedError


def pixel_table(values: np.ndarray) -> np.ndarray:
    """Return the new value of each of the 256 pixel values, from whole numbers, cut to the range 0 to 255."""
    return np.clip(values, 0, 255).astype(np.uint8)


def in_256ths(value: float) -> int:
    """Return a factor as whole 256ths: products with whole numbers are then the same on every machine."""
    return round(value * 256)
