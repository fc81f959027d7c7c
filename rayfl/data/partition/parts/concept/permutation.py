"""Some or all labels in a drawn order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.concept.concept import Concept
from rayfl.errors import InputError


@dataclass(frozen=True)
class LabelPermutation(Concept):
    """A number of `labels` drawn labels each become another of them; 0: all labels, in any drawn order.

    >>> order = LabelPermutation(labels=3).order(10, np.random.default_rng(0))
    >>> int((order != np.arange(10)).sum()), sorted(order.tolist()) == list(range(10))
    (3, True)
    """

    name: ClassVar[str] = "permutation"

    labels: int = 0

    @property
    def drawn(self) -> bool:
        """The order is always drawn."""
        return True

    def order(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """Return the new label of each class."""
        if not self.labels:
            return rng.permutation(classes)
        if self.labels > classes:
            raise InputError(
                f"partition.concept: labels={self.labels} is more than the {classes} classes: use at most {classes}"
            )
        some = rng.permutation(classes)[: self.labels]
        order = np.arange(classes)
        order[some] = np.roll(some, 1)  # one cycle, so that each of them changes
        return order
