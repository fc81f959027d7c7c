"""What a quantity part is. A user's own is a subclass of `Quantity`, named by its import path."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Quantity:
    """How many samples each client has, training and test together. Its fields are the part's keys in a config."""

    #: The name in a config.
    name: ClassVar[str] = ""
    #: Whether clients must have exactly these sizes; if not, they get less where their classes are too scarce.
    exact: ClassVar[bool] = False

    def sizes(self, clients: int, total: int, rng: np.random.Generator) -> np.ndarray:
        """Return the size of each client; they add up to at most `total`, and each is 2 or more."""
        raise NotImplementedError
