"""Pairs of labels that change places."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rayfl.data.partition.parts.concept.concept import Concept
from rayfl.errors import InputError


@dataclass(frozen=True)
class Swap(Concept):
    """The two labels of each given pair change places, or those of `random` drawn pairs.

    >>> Swap(pairs=((0, 1),)).order(4, np.random.default_rng(0)).tolist()
    [1, 0, 2, 3]
    """

    name: ClassVar[str] = "swap"

    pairs: tuple[tuple[int, int], ...] = ()
    random: int = 0

    @property
    def drawn(self) -> bool:
        """Whether pairs are drawn."""
        return self.random > 0

    def order(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """Return the new label of each class."""
        if 2 * self.random > classes:
            raise InputError(
                f"partition.concept: random={self.random} pairs have {2 * self.random} labels, and there are {classes}:"
                f" use at most {classes // 2}"
            )
        beyond = [label for pair in self.pairs for label in pair if label >= classes]
        if beyond:
            raise InputError(f"partition.concept: pairs name label {beyond[0]}, and labels go from 0 to {classes - 1}")
        pairs = rng.permutation(classes)[: 2 * self.random].reshape(-1, 2) if self.random else self.pairs
        order = np.arange(classes)
        for a, b in pairs:
            order[[a, b]] = b, a
        return order
