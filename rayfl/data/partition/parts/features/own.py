"""A user's own function on raw inputs, or a user's own subclass of `Feature`, known by its import path."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.partition.parts.features.feature import Feature
from rayfl.errors import InputError, RayflError
from rayfl.own_code import imported, told_as

_TRIED = 3  # samples that the function is tried on, together and one by one


@dataclass(frozen=True)
class OwnFeature(Feature):
    """What `path` names, with `options`: `function(inputs, **options)`, or a subclass of `Feature` with these fields.

    >>> OwnFeature("numpy:flip", (("axis", 3),)).apply(np.array([[[[1, 2, 3]]]], np.uint8), np.array([0])).tolist()
    [[[[3, 2, 1]]]]
    """

    needs: ClassVar[Literal["pixels", "image", "array"]] = "array"

    path: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def check(self, dataset: Dataset, key: str) -> None:
        """Try the function on a few samples: it must return the same for each sample alone as for all together."""
        if dataset.kind == "text":
            raise InputError(f"{key}: {self.path} is for images or vectors, and this source has text: remove it")
        made = self._made(f"{key}.kind")
        if isinstance(made, Feature):
            made.check(dataset, key)
        samples = np.arange(min(_TRIED, len(dataset)))
        inputs = dataset.inputs[samples]
        together = self._called(made, inputs.copy(), samples, key)
        for at in samples:
            alone = self._called(made, inputs[at : at + 1].copy(), samples[at : at + 1], key)
            if not np.array_equal(alone[0], together[at]):
                raise InputError(
                    f"{key}: {self.path} makes something else of a sample when others are beside it: it must treat each"
                    " sample on its own, and draw no random numbers"
                )

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return what the function makes of the inputs."""
        return self._called(self._made("partition.features"), inputs, samples, "partition.features")

    def _made(self, key: str) -> Any:
        found = imported(key, self.path, "function")
        if isinstance(found, type) and issubclass(found, Feature):
            with told_as(RayflError, f"{key}={self.path} cannot be made with {dict(self.options)}"):
                return found(**dict(self.options))
        if not callable(found):
            raise InputError(f"{key}={self.path} is no function and no subclass of rayfl.data.partition.Feature")
        return found

    def _called(self, made: Any, inputs: np.ndarray, samples: np.ndarray, key: str) -> np.ndarray:
        kind, shape = inputs.dtype, inputs.shape
        with told_as(RayflError, f"{key}: {self.path} failed"):
            found = made.apply(inputs, samples) if isinstance(made, Feature) else made(inputs, **dict(self.options))
        if not isinstance(found, np.ndarray) or found.dtype != kind or found.shape != shape:
            what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise InputError(f"{key}: {self.path} gives {what}: it must give an array like its input, {kind} {shape}")
        return found.copy()  # the function may keep a reference to its result
