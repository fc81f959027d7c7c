"""Sizes that fall with the rank of the client."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.quantity.drawn import Drawn


@dataclass(frozen=True)
class PowerLaw(Drawn):
    """The client of rank k has a size in proportion to k^-exponent; ranks are drawn.

    >>> sorted(PowerLaw(exponent=1.0).sizes(3, 110, np.random.default_rng(0)).tolist())
    [20, 30, 60]
    """

    name: ClassVar[str] = "power_law"

    exponent: float = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the powers, in drawn order."""
        return (rng.permutation(clients) + 1.0) ** -self.exponent
