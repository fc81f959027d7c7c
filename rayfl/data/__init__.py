"""Samples and who gets them: sources, the in-memory data set, partitions. Knows nothing of models or Ray.

`load_dataset` is in `rayfl.data.sources`: actors get the data set ready, and need not wait for what reads files.
"""

from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition import Partition, PartitionKind, make_partition

__all__ = ["Dataset", "Partition", "PartitionKind", "Transform", "make_partition"]
