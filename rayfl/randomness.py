"""Random numbers derived from what they are for: (seed, purpose, round, client), never from global state.

This makes a run the same for any number of actors and any order of arrival.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Purpose(IntEnum):
    """What a stream of random numbers is for. The values decide every run's random numbers: never change them."""

    PARTITION = 1
    MODEL = 2
    COHORT = 3
    BATCHES = 4
    DROPOUT = 5
    CLUSTERING = 6
    AUGMENTATION = 7
    MAP = 8
    SKETCH = 9
    LOST_UPDATES = 20
    NEWCOMERS = 21


def generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """Return the generator for this purpose; `keys` are the round, the client, or whatever else separates streams.

    >>> a, b = generator(0, Purpose.COHORT, 1), generator(0, Purpose.COHORT, 1)
    >>> int(a.integers(1000)) == int(b.integers(1000))
    True
    """
    return np.random.default_rng([seed, int(purpose), *keys])


def torch_seed(seed: int, purpose: Purpose, *keys: int) -> int:
    """Return a seed for torch's generators (model initialisation, dropout), derived in the same way."""
    return int(generator(seed, purpose, *keys).integers(2**63 - 1))


def seed_globals(seed: int) -> None:
    """Seed the global generators of numpy, Python and torch (CPU): a user's network may draw from them."""
    import torch

    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def global_generators_kept(cuda: "Sequence[torch.device]" = ()) -> Iterator[None]:
    """Restore the global generators of torch, numpy and Python at the end; on GPUs, those of the devices `cuda`."""
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(list(cuda)):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
