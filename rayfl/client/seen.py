"""A cache of inputs as clients see them, for transforms that take work: turned, blurred and noisy inputs.

The cache keeps the most recently used inputs, up to a number of bytes. It changes no bit of a result, because a
transformed sample depends only on the sample and the transform.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from rayfl.data import Dataset, Partition, Transform

#: The most bytes that the cache of a worker holds.
MOST_BYTES = 256 * 2**20


@dataclass
class _Kept:
    """The inputs of some samples of one client, in the order of the samples' numbers; `done` says which are valid."""

    transform: Transform
    samples: np.ndarray
    inputs: np.ndarray
    done: np.ndarray


def samples_kept(partition: Partition, cohort: int) -> int:
    """Return how many samples that take work will be needed at least: for all clients' tests and one cohort's training.

    The cohort counted is the one that needs the fewest: clients whose samples take no work, then the smallest clients.
    """
    if partition.transform_of is None or not any(transform.costs for transform in partition.transforms):
        return 0
    costs = np.array([transform.costs for transform in partition.transforms])[partition.transform_of_at(1)]
    least = max(0, cohort - int((~costs).sum()))
    return int(partition.n_test[costs].sum() + np.sort(partition.n_train[costs])[:least].sum())


class SeenInputs:
    """Raw inputs as clients see them, by client and split."""

    def __init__(self, dataset: Dataset, partition: Partition, most_bytes: int = MOST_BYTES) -> None:
        self._dataset, self._partition, self._most = dataset, partition, most_bytes
        self._kept: OrderedDict[tuple[int, int], _Kept] = OrderedDict()
        self.bytes = 0

    def inputs(self, client: int, samples: np.ndarray, transform: Transform) -> np.ndarray:
        """Return a copy of these samples as the client sees them through the transform."""
        split = self._split_of(client, samples)
        if split is None:
            return self._dataset.seen(samples, transform)
        kept = self._entry(client, *split, transform)
        if kept is None:
            return self._dataset.seen(samples, transform)
        places = np.searchsorted(kept.samples, samples)
        if not kept.done.all():
            wanted = np.unique(places)
            missing = wanted[~kept.done[wanted]]
            if len(missing):
                kept.inputs[missing] = self._dataset.seen(kept.samples[missing].astype(np.intp), transform)
                kept.done[missing] = True
        return kept.inputs.take(places, axis=0)

    def _split_of(self, client: int, samples: np.ndarray) -> tuple[int, np.ndarray] | None:
        """Return the number of the split that has these samples, and all of the client's samples in it, or None."""
        of = (self._partition.train_of, self._partition.test_of, self._partition.validation_of)
        for number, samples_of in enumerate(of):
            whole = samples_of(client)
            places = np.minimum(np.searchsorted(whole, samples), len(whole) - 1) if len(whole) else None
            if places is not None and (whole[places] == samples).all():
                return number, whole
        return None

    def _entry(self, client: int, split: int, samples: np.ndarray, transform: Transform) -> _Kept | None:
        key = client, split
        kept = self._kept.get(key)
        if kept is not None and kept.transform is transform:
            self._kept.move_to_end(key)
            return kept
        if kept is not None:
            self._drop(key)
        inputs = self._dataset.inputs
        size = len(samples) * (int(np.prod(inputs.shape[1:])) * inputs.itemsize + 1)
        if size > self._most:
            return None
        while self.bytes + size > self._most:
            self._drop(next(iter(self._kept)))
        new = np.empty((len(samples), *inputs.shape[1:]), inputs.dtype)
        self._kept[key] = _Kept(transform, samples, new, np.zeros(len(samples), bool))
        self.bytes += size
        return self._kept[key]

    def _drop(self, key: tuple[int, int]) -> None:
        kept = self._kept.pop(key)
        self.bytes -= kept.inputs.nbytes + len(kept.samples)
