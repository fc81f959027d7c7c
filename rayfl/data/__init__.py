"""Samples and who gets them: sources, the in-memory data set, partitions. Knows nothing of models or Ray.

`load_dataset` is in `rayfl.data.sources`: actors get the finished data set, and need not import the file readers.
"""

from typing import TYPE_CHECKING, Any

from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition import Change, Partition, PartitionKind, clusters_at, make_partition

if TYPE_CHECKING:
    from rayfl.data.sources.objects import Data

__all__ = ["Change", "Data", "Dataset", "Partition", "PartitionKind", "Transform", "clusters_at", "make_partition"]


def __getattr__(name: str) -> Any:
    """Import `Data` when it is first asked for: pandas takes a third of a second."""
    if name == "Data":
        from rayfl.data.sources.objects import Data

        return Data
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
