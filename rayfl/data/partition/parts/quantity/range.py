"""Sizes drawn from a range."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.counting import share_out
from rayfl.data.partition.parts.quantity.quantity import Quantity
from rayfl.errors import InputError


@dataclass(frozen=True)
class Range(Quantity):
    """A size from `min` to `max` for each client, all equally likely; less, in proportion, if samples are too few.

    >>> sizes = Range(min=3, max=9).sizes(50, 1000, np.random.default_rng(0))
    >>> int(sizes.min()), int(sizes.max())
    (3, 9)
    """

    name: ClassVar[str] = "range"

    min: int = 2
    max: int = 2

    def sizes(self, clients: int, total: int, rng: np.random.Generator) -> np.ndarray:
        """Return drawn sizes."""
        if self.min * clients > total:
            raise InputError(
                f"partition.quantity.min={self.min} for {clients} clients needs {self.min * clients} samples, there are"
                f" {total}: use at most {total // clients}"
            )
        if clients * self.max * total >= 2**62:  # what whole-number arithmetic can hold
            raise InputError(f"partition.quantity.max={self.max} is too large: there are {total} samples in all")
        drawn = rng.integers(self.min, self.max, size=clients, endpoint=True)
        if drawn.sum() > total:
            drawn = self.min + share_out(drawn - self.min, total - self.min * clients, rng)
        return drawn
