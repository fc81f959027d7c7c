"""The same seed gives the partitions that version 0.1 gave, bit for bit: every kind, with every way to split."""

import hashlib
from itertools import product
from typing import Any

import numpy as np
import pytest

from rayfl.config import partition_config
from rayfl.data import Dataset, Partition, make_partition

KINDS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid"},
    "dirichlet": {"kind": "dirichlet", "alpha": 0.05},
    "classes": {"kind": "classes", "classes": 3},
    "cluster_dirichlet": {"kind": "cluster_dirichlet", "clusters": 3},
    "sizes of clusters": {"kind": "cluster_dirichlet", "cluster_sizes": [2, 3, 5]},
    "cluster_classes": {"kind": "cluster_classes", "clusters": 3, "classes_cluster": 3, "classes_client": 2},
    "rotation": {"kind": "transforms"},
    "inversion": {"kind": "transforms", "transform": "inversion"},
    "label_permutation": {"kind": "transforms", "transform": "label_permutation", "clusters": 3},
    "angles": {"kind": "transforms", "angles": [0, 10, 200]},
    "whole_per_cluster": {"kind": "transforms", "whole_per_cluster": True, "cluster_sizes": [3, 2, 4, 1]},
    "natural": {"kind": "natural", "column": "owner", "clients": 7},
}
SPLITS: list[dict[str, Any]] = [
    {"test": 0.3},
    {"test": 0.3, "validation": 0.25, "public": "test"},
    {"test": "official", "public": 0.1},
    {"test": "official", "validation": 0},
]
SIZES: list[dict[str, Any]] = [{}, {"samples": [6, 30]}]
#: Digests of what version 0.1 dealt.
BEFORE: dict[str, str] = {
    "iid": "c1d9440b05be7409",
    "dirichlet": "f035e5249b3f650f",
    "classes": "8cd0f7afe27bec78",
    "cluster_dirichlet": "93667645ef13dbd8",
    "sizes of clusters": "feb302203f868f78",
    "cluster_classes": "e8a6d898beca79d9",
    "rotation": "4350df413e1e8dca",
    "inversion": "2a54f2af0f4355eb",
    "label_permutation": "b96a75594744fce2",
    "angles": "c281dd8e3ec45621",
    "whole_per_cluster": "e95eb23ac92f9ca4",
    "natural": "8f6d534d5d2d6ca8",
}
#: These draw through exp and log, whose last bits depend on the CPU.
FLOATS = ("dirichlet", "cluster_dirichlet", "sizes of clusters")
FUNCTIONS = "fb66fead774069b7"


def dataset() -> Dataset:
    rng = np.random.default_rng(5)
    n = 600
    labels = np.concatenate([np.tile(np.arange(8), 10), rng.integers(0, 8, n - 80)])
    draw = rng.random(n)
    return Dataset(
        inputs=rng.integers(0, 256, (n, 1, 4, 4)).astype(np.uint8),
        labels=labels.astype(np.uint8),
        classes=8,
        kind="image",
        is_test=draw < 0.3,
        shift=np.zeros(1, np.float32),
        scale=np.ones(1, np.float32),
        owner=np.arange(n) % 12,
        owner_names=tuple(f"owner {i}" for i in range(12)),
        is_validation=draw > 0.8,
    )


def arrays(partition: Partition, data: Dataset) -> list[np.ndarray]:
    names = ("train", "train_offsets", "test", "test_offsets", "validation", "validation_offsets", "public")
    seen = partition.normalised(data)
    none = np.zeros(0)
    return [
        *(getattr(partition, name) for name in names),
        none if partition.true_cluster is None else partition.true_cluster,
        none if partition.transform_of is None else partition.transform_of,
        np.frombuffer(repr(partition.transforms).encode(), np.uint8),
        partition.label_counts(data, "all"),
        seen.shift,
        seen.scale,
    ]


def digest(all_arrays: list[np.ndarray]) -> str:
    known = hashlib.blake2b(digest_size=8)
    for array in all_arrays:
        known.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return known.hexdigest()


def dealt(kind: str) -> str:
    data = dataset()
    found = []
    for splits, sizes in product(SPLITS, SIZES):
        config = partition_config(**{"clients": 10, **KINDS[kind], **splits, **sizes})
        found += arrays(make_partition(config, data, 7), data)
    return digest(found)


def functions() -> str:
    """What tells CPUs apart whose exp and log differ."""
    rng = np.random.default_rng(0)
    draws = rng.standard_gamma(np.full(5000, 1.1))
    return digest([np.log(draws), np.exp(-draws), np.log1p(-rng.random(5000))])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_partition_of_version_0_1(kind: str) -> None:
    if kind in FLOATS and functions() != FUNCTIONS:
        pytest.skip("exp and log have other last bits on this CPU than where the digests were made")
    assert dealt(kind) == BEFORE[kind]
