"""Sizes whose logarithms are normal."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.quantity.drawn import Drawn


@dataclass(frozen=True)
class Lognormal(Drawn):
    """Sizes in proportion to exp(sigma z), z standard normal.

    >>> Lognormal(sigma=1.0).sizes(5, 100, np.random.default_rng(0)).sum()
    np.int64(100)
    """

    name: ClassVar[str] = "lognormal"

    sigma: float = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return exp(sigma z)."""
        logs = self.sigma * rng.standard_normal(clients)
        return np.exp(logs - logs.max())
