"""Random numbers derived from what they are for: (seed, purpose, round, client), never from global state.

That is what makes a run the same for any number of actors and any order of arrival.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for. The numbers are part of every run's bits: never renumber."""

    PARTITION = 1
    MODEL = 2
    COHORT = 3
    BATCHES = 4
    DROPOUT = 5
    CLUSTERING = 6


def generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """Return the generator of this purpose; `keys` are the round, the client, or whatever tells streams apart.

    >>> a, b = generator(0, Purpose.COHORT, 1), generator(0, Purpose.COHORT, 1)
    >>> int(a.integers(1000)) == int(b.integers(1000))
    True
    """
    return np.random.default_rng([seed, int(purpose), *keys])


def torch_seed(seed: int, purpose: Purpose, *keys: int) -> int:
    """Return a seed for torch's own generators (model initialisation, dropout), derived in the same way."""
    return int(generator(seed, purpose, *keys).integers(2**63 - 1))
