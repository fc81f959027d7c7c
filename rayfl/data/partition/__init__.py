"""Who gets which samples. Every kind is one class; a user's own kind is a subclass of `PartitionKind` too.

What a sample may be used for is decided first, in `splits`, so that public, training, validation and test samples are
disjoint whatever the kind.
"""

from rayfl.config import PartitionConfig
from rayfl.data.dataset import Dataset
from rayfl.data.partition.clusters import ClusterClasses, ClusterDirichlet
from rayfl.data.partition.composed import Composed
from rayfl.data.partition.features import Transforms
from rayfl.data.partition.file import FromFile
from rayfl.data.partition.flwr import FlwrPartition, is_flwr
from rayfl.data.partition.kind import PartitionKind, own_kind
from rayfl.data.partition.labels import ByLabels, Classes, Dirichlet, Iid
from rayfl.data.partition.natural import Natural
from rayfl.data.partition.parts.concept import Concept
from rayfl.data.partition.parts.features import Feature
from rayfl.data.partition.parts.quantity import Quantity
from rayfl.data.partition.result import Change, Partition, clusters_at

__all__ = [
    "KINDS",
    "ByLabels",
    "Change",
    "Concept",
    "Feature",
    "Partition",
    "PartitionKind",
    "Quantity",
    "clusters_at",
    "find_kind",
    "make_partition",
]

_BUILT_IN = (Iid, Dirichlet, Classes, ClusterDirichlet, ClusterClasses, Transforms, Natural, Composed, FromFile)
#: The kinds by name; any other is an import path.
KINDS: dict[str, type[PartitionKind]] = {kind.name: kind for kind in _BUILT_IN}


def find_kind(name: str) -> type[PartitionKind]:
    """Return the kind of this name, or the class behind `package.module:Class`."""
    if is_flwr(name):
        return FlwrPartition
    return KINDS[name] if name in KINDS else own_kind("partition.kind", name)


def make_partition(config: PartitionConfig, dataset: Dataset, seed: int) -> Partition:
    """Deal the samples of `dataset` to clients: equal seeds give equal partitions, and every client gets samples.

    No sample is dealt twice, except once per cluster with partition.whole_per_cluster.
    Train, validation and test samples of one client share one label distribution. With partition.test=official the
    test samples come from the source's own test split, else every client keeps the share partition.test of its samples
    for testing; partition.validation does the same with what is left for training. partition.public is set aside first.
    """
    return find_kind(config.kind)(config).make(dataset, seed)
