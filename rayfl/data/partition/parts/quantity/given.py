"""Given sizes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.quantity.quantity import Quantity
from rayfl.errors import InputError


@dataclass(frozen=True)
class Sizes(Quantity):
    """The sizes that are given, one per client.

    >>> Sizes((5, 3)).sizes(2, 10, np.random.default_rng(0)).tolist()
    [5, 3]
    """

    name: ClassVar[str] = "sizes"
    exact: ClassVar[bool] = True

    given: tuple[int, ...] = ()

    def sizes(self, clients: int, total: int, rng: np.random.Generator) -> np.ndarray:
        """Return the sizes as given."""
        if min(self.given) < 2:
            raise InputError(
                "partition.quantity.sizes: a client needs 2 samples at least, one to train and one to test"
            )
        if sum(self.given) > total:
            raise InputError(
                f"partition.quantity.sizes add up to {sum(self.given)}, and there are {total} samples: use less"
            )
        return np.array(self.given, np.int64)
