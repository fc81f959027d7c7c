"""From dealt samples to the flat arrays of a `Partition`."""

import numpy as np

from rayfl.data.dataset import Transform
from rayfl.data.partition.result import Change, Partition
from rayfl.data.partition.splits import Dealt


def flat_partition(
    dealt: Dealt,
    public: np.ndarray,
    true_cluster: np.ndarray | None = None,
    transforms: tuple[Transform, ...] = (),
    transform_of: np.ndarray | None = None,
    client_names: tuple[str, ...] | None = None,
    changes: tuple[Change, ...] = (),
) -> Partition:
    """Return the partition of samples that are sorted by client."""

    def flat(samples: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Within a client, samples have the source's order: they are close in memory, and not sorted by label.
        client = np.repeat(np.arange(len(sizes)), sizes)
        return _smallest_index(samples[np.lexsort((samples, client))]), np.concatenate([[0], np.cumsum(sizes)])

    return Partition(
        *flat(dealt.train, dealt.n_train),
        *flat(dealt.test, dealt.n_test),
        *flat(dealt.validation, dealt.n_validation),
        _smallest_index(public),
        true_cluster,
        transforms,
        transform_of,
        client_names,
        changes,
    )


def _smallest_index(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.int32 if len(samples) == 0 or samples.max() < 2**31 else np.int64)
