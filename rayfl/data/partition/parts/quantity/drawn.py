"""The base of quantities that follow a law: weights that become whole sizes."""

from dataclasses import dataclass

import numpy as np

from rayfl.data.partition.counting import share_out
from rayfl.data.partition.dealing import whole
from rayfl.data.partition.parts.quantity.quantity import Quantity
from rayfl.data.partition.quantity import raised
from rayfl.errors import InputError


@dataclass(frozen=True)
class Drawn(Quantity):
    """Sizes in proportion to weights, for all samples or a `mean` per client; no client has less than `least`."""

    mean: float | None = None
    least: int = 2

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return a weight for each client."""
        raise NotImplementedError

    def sizes(self, clients: int, total: int, rng: np.random.Generator) -> np.ndarray:
        """Return sizes in proportion to the weights; the smallest are raised at the cost of the largest."""
        wanted = total if self.mean is None else round(self.mean * clients)
        if wanted > total:
            raise InputError(
                f"partition.quantity.mean={self.mean:g} for {clients} clients needs {wanted} samples, there are"
                f" {total}: use at most {total / clients:g}"
            )
        if self.least * clients > wanted:
            raise InputError(
                f"partition.quantity.least={self.least} for {clients} clients needs {self.least * clients} samples,"
                f" there are {wanted} for them: use at most {wanted // clients}"
            )
        sizes = share_out(whole(self.weights(clients, rng), wanted), wanted, rng)
        return raised(sizes, np.full(clients, self.least))
