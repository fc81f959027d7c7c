"""Digests of arrays, which tell data sets and partitions apart."""

import hashlib

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.partition.result import Partition

_NONE = np.zeros(0)


def digest(*arrays: np.ndarray) -> str:
    """Return a digest of arrays, with their types and shapes."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def data_arrays(dataset: Dataset) -> list[np.ndarray]:
    """Return arrays that stand for the samples: some inputs, since all would take seconds, and every label."""
    return [dataset.inputs[:: max(1, len(dataset.inputs) // 1000)], dataset.labels]


def dealt_arrays(partition: Partition) -> list[np.ndarray]:
    """Return the arrays that say who has which samples."""
    sizes = [partition.n_train, partition.n_test]
    return [partition.train, partition.test, *sizes, partition.validation, partition.n_validation, partition.public]


def data_digest(dataset: Dataset) -> str:
    """Return the digest of a data set."""
    return digest(*data_arrays(dataset), _NONE if dataset.starts is None else dataset.starts)


def partition_digest(partition: Partition) -> str:
    """Return the digest of who has which samples, in which planted cluster and through which transform, and when."""
    planted = [
        _NONE if partition.true_cluster is None else partition.true_cluster,
        _NONE if partition.transform_of is None else partition.transform_of,
        np.frombuffer(repr(partition.transforms).encode(), np.uint8),
    ]
    for change in partition.changes:
        planted += [np.array(change.round), change.clients, change.true_cluster]
        planted += [_NONE if change.transform_of is None else change.transform_of]
    return digest(*dealt_arrays(partition), *planted)
