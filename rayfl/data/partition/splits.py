"""What samples are for: training, validation, test, or public. Decided before any of them is dealt to clients."""

from dataclasses import dataclass, replace

import numpy as np

from rayfl.config import PartitionConfig
from rayfl.data.dataset import Dataset
from rayfl.data.partition.counting import by_client_and_label, split_off
from rayfl.errors import InputError
from rayfl.randomness import Purpose, generator

_PUBLIC_STREAM = 2  # the partition itself draws from other streams of the same purpose


@dataclass(frozen=True)
class Splits:
    """What samples may be used for, before any are dealt: no sample is in two of these.

    `pool` is for training, and for testing and validation if clients keep shares of their samples for these. `test`
    and `validation` are splits that are dealt as they are, else empty.
    """

    pool: np.ndarray
    test: np.ndarray
    validation: np.ndarray
    public: np.ndarray


@dataclass(frozen=True)
class Dealt:
    """Samples that are sorted by client, and how many of them each client has."""

    train: np.ndarray
    n_train: np.ndarray
    test: np.ndarray
    n_test: np.ndarray
    validation: np.ndarray
    n_validation: np.ndarray


def make_splits(config: PartitionConfig, dataset: Dataset, seed: int) -> Splits:
    """Decide which samples are public, and which of the source's own splits are used."""
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
        # Official splits stay whole: results on them can be compared with published ones.
        free = np.flatnonzero(~(test | validation))
        drawn = generator(seed, Purpose.PARTITION, _PUBLIC_STREAM).permutation(free)
        public = nothing.copy()
        public[drawn[: max(1, round(config.public * len(free)))]] = True
    pool = ~(test | validation | public)
    return Splits(*(np.flatnonzero(split) for split in (pool, test, validation, public)))


def keeps_validation_share(config: PartitionConfig) -> bool:
    """Whether each client keeps a share of its training samples for validation."""
    return isinstance(config.validation, float) and config.validation > 0


def with_validation_share(
    config: PartitionConfig,
    dataset: Dataset,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> Dealt:
    """Let every client with more than one training sample keep the share partition.validation of them, if any.

    Everything else stays as it is, so that models are tested on the same samples with and without validation.
    """
    train, n_train, test, n_test = parts
    if not keeps_validation_share(config):
        return Dealt(*parts, train[:0], np.zeros_like(n_train))
    assert isinstance(config.validation, float)
    ordered = by_client_and_label(dataset, train, n_train)
    train, n_train, *validation = split_off(dataset, ordered, n_train, config.validation, rng)
    return Dealt(train, n_train, test, n_test, *validation)


def cut_once(config: PartitionConfig, dataset: Dataset, splits: Splits, rng: np.random.Generator) -> Splits:
    """Split off test and validation samples before each cluster is dealt all samples.

    So a sample that one cluster trains on never tests another cluster, not even through another transform.
    """

    def cut(pool: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
        if len(pool) < 2:
            return pool, pool[:0]
        size = np.array([len(pool)])
        ordered = by_client_and_label(dataset, rng.permutation(pool), size)
        rest, _, taken, _ = split_off(dataset, ordered, size, share, rng)
        return rest, taken

    if config.test != "official":
        pool, test = cut(splits.pool, config.test)
        splits = replace(splits, pool=pool, test=test)
    if keeps_validation_share(config):
        assert isinstance(config.validation, float)
        pool, validation = cut(splits.pool, config.validation)
        splits = replace(splits, pool=pool, validation=validation)
    return splits
