"""What samples are for: training, validation, test, or public. Settled before any of them is dealt to clients."""

from dataclasses import dataclass

import numpy as np

from rayfl.config import PartitionConfig
from rayfl.data.dataset import Dataset
from rayfl.errors import InputError
from rayfl.randomness import Purpose, generator

_PUBLIC_STREAM = 2  # the partition itself draws from others of the same purpose


@dataclass(frozen=True)
class Splits:
    """What samples may be used for, before anyone gets any: no sample is in two of these.

    `pool` is for training, and for tests and validation where clients keep shares of theirs; `test` and `validation`
    are splits that are dealt as they are, else empty.
    """

    pool: np.ndarray
    test: np.ndarray
    validation: np.ndarray
    public: np.ndarray


def make_splits(config: PartitionConfig, dataset: Dataset, seed: int) -> Splits:
    """Settle what is public, and which of the source's own splits are used as such."""
    for key, value in (("test", config.test == "official"), ("public", config.public == "test")):
        if value and (dataset.is_test.all() or not dataset.is_test.any()):
            raise InputError(
                f"partition.{key}={getattr(config, key)}: this source has no training and test split of its own: use a"
                f" share, such as partition.{key}={0.2 if key == 'test' else 0.1}"
            )
    nothing = np.zeros(len(dataset), bool)
    validation = nothing if dataset.is_validation is None else dataset.is_validation
    if config.validation == "official" and not validation.any():
        raise InputError(
            "partition.validation=official: this source has no validation split of its own: use a share, such as"
            " partition.validation=0.1"
        )
    validation = nothing if isinstance(config.validation, float) else validation
    test = dataset.is_test if config.test == "official" else nothing
    public = dataset.is_test if config.public == "test" else nothing
    if isinstance(config.public, float):
        # Official splits stay whole: results on them can be compared with those of others.
        free = np.flatnonzero(~(test | validation))
        drawn = generator(seed, Purpose.PARTITION, _PUBLIC_STREAM).permutation(free)
        public = nothing.copy()
        public[drawn[: max(1, round(config.public * len(free)))]] = True
    pool = ~(test | validation | public)
    return Splits(*(np.flatnonzero(split) for split in (pool, test, validation, public)))


def keeps_validation_share(config: PartitionConfig) -> bool:
    """Whether each client keeps a share of its training samples for validation."""
    return isinstance(config.validation, float) and config.validation > 0
