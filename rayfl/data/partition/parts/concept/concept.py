"""What a concept part is. A user's own is a subclass of `Concept`, named by its import path."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Concept:
    """Labels in another order: the same inputs mean something else. Its fields are the part's keys, one value each."""

    #: The name in a config.
    name: ClassVar[str] = ""

    @property
    def drawn(self) -> bool:
        """Whether each cluster or client gets its own drawn order; the first cluster then keeps its labels."""
        return False

    def order(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """Return the new label of each class, from 0: each label once."""
        raise NotImplementedError
