"""Who gets which samples. Every kind is one class; kinds of users' own have the same protocol (`PartitionKind`).

What a sample may be used for is decided before, in `splits`, so that public, training, validation and test samples are
disjoint whatever the kind.
"""

from typing import Any

import numpy as np

from rayfl.config import PartitionConfig
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.clusters import ClusterClasses, ClusterDirichlet
from rayfl.data.partition.features import Transforms
from rayfl.data.partition.kind import PartitionKind, Streams
from rayfl.data.partition.labels import ByLabels, Classes, Dirichlet, Iid
from rayfl.data.partition.natural import Natural
from rayfl.data.partition.result import Partition
from rayfl.data.partition.splits import Dealt, make_splits
from rayfl.errors import InputError
from rayfl.own_code import imported

__all__ = ["KINDS", "ByLabels", "Partition", "PartitionKind", "find_kind", "make_partition"]

_BUILT_IN = (Iid, Dirichlet, Classes, ClusterDirichlet, ClusterClasses, Transforms, Natural)
#: The kinds by name; any other is an import path.
KINDS: dict[str, type[PartitionKind]] = {kind.name: kind for kind in _BUILT_IN}


def find_kind(name: str) -> type[PartitionKind]:
    """Return the kind of this name, or the class behind `package.module:Class`."""
    if name in KINDS:
        return KINDS[name]
    found = imported("partition.kind", name, "class", _is_kind)
    if not _is_kind(found):
        raise InputError(f"partition.kind={name} is not a subclass of rayfl.data.PartitionKind: make it one")
    return found


def _is_kind(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, PartitionKind)


def make_partition(config: PartitionConfig, dataset: Dataset, seed: int) -> Partition:
    """Deal the samples of `dataset` to clients. Same seed, same partition; no sample twice, nobody without.

    Train, validation and test samples of one client share one label distribution. With partition.test=official the
    test samples come from the source's own test split, else every client keeps that share of its samples for testing;
    the same goes for partition.validation and what is left for training. partition.public is set aside before.
    """
    kind = find_kind(config.kind)(config)
    splits = make_splits(config, dataset, seed)
    streams = Streams(seed)
    splits = kind.settle(dataset, splits, streams)
    transforms = kind.transforms(dataset, streams.main)
    dealt = kind.deal(dataset, splits, streams)
    clusters = _checked_clusters(kind, len(dealt.n_train), transforms)
    return _partition(dealt, splits.public, clusters, transforms, kind.client_names())


def _checked_clusters(kind: PartitionKind, clients: int, transforms: tuple[Transform, ...]) -> np.ndarray | None:
    """Return the planted clusters; a kind of a user's own may have them wrong."""
    found = kind.clusters(clients)
    if found is None:
        if transforms:
            raise InputError(
                f"partition.kind={kind.config.kind} has transforms but no clusters: clusters() must say which client is"
                " in which"
            )
        return None
    clusters = np.asarray(found)
    most = len(transforms) if transforms else None
    if clusters.shape != (clients,) or clusters.dtype.kind not in "iu" or clusters.min() < 0:
        raise InputError(
            f"partition.kind={kind.config.kind}: clusters() gives an array of {clusters.dtype} of shape"
            f" {clusters.shape}: it must give the number of a cluster, from 0, for each of the {clients} clients"
        )
    if most is not None and clusters.max() >= most:
        raise InputError(
            f"partition.kind={kind.config.kind}: cluster {clusters.max()} has no transform, there are {most}"
        )
    return clusters.astype(np.int64)


def _partition(
    dealt: Dealt,
    public: np.ndarray,
    true_cluster: np.ndarray | None,
    transforms: tuple[Transform, ...],
    client_names: tuple[str, ...] | None,
) -> Partition:
    def flat(samples: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Within a client in the source's order: neighbours in memory, and no run of one label.
        client = np.repeat(np.arange(len(sizes)), sizes)
        return _smallest_index(samples[np.lexsort((samples, client))]), np.concatenate([[0], np.cumsum(sizes)])

    return Partition(
        *flat(dealt.train, dealt.n_train),
        *flat(dealt.test, dealt.n_test),
        *flat(dealt.validation, dealt.n_validation),
        _smallest_index(public),
        true_cluster,
        transforms,
        true_cluster if transforms else None,
        client_names,
    )


def _smallest_index(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.int32 if len(samples) == 0 or samples.max() < 2**31 else np.int64)
