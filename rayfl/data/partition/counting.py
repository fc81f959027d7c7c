"""Whole-number arithmetic on samples that are sorted by client. Sums are exact."""

import numpy as np

from rayfl.data.dataset import Dataset


def share_out(weights: np.ndarray, totals: np.ndarray | int, rng: np.random.Generator) -> np.ndarray:
    """Share whole totals out over the last axis in proportion to whole weights.

    Every share is its exact value rounded down or up, and right on average. The shares add up to the total; a weight
    of zero gives a share of zero. This is systematic sampling: the running sums are cut at a random offset.

    >>> share_out(np.array([3, 0, 1]), 8, np.random.default_rng(0)).tolist()
    [6, 0, 2]
    """
    ends = np.cumsum(weights, axis=-1, dtype=np.int64)
    whole = ends[..., -1:]
    if (whole == 0).any():
        raise ValueError("nothing to share by: all weights of a row are zero")
    cuts = (ends * np.asarray(totals)[..., None] + rng.integers(0, whole)) // whole
    return np.diff(cuts, axis=-1, prepend=0)


def split_off(
    dataset: Dataset, samples: np.ndarray, sizes: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Split each client's samples, which are sorted by label, into two parts with the same mix of labels.

    The second part is the given share of the samples. Each part gets at least one sample; a client's only sample is in
    the first part.
    """
    labels = count_labels(dataset, samples, sizes)
    n_taken = np.clip(np.rint(sizes * share).astype(np.int64), 1, sizes - 1)
    groups = labels.ravel()
    taken = rank(groups) < np.repeat(share_out(labels, n_taken, rng).ravel(), groups)
    return samples[~taken], sizes - n_taken, samples[taken], n_taken


def by_client_and_label(dataset: Dataset, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sort samples, which are grouped by client, by label within each client; the order is kept otherwise."""
    client = np.repeat(np.arange(len(sizes)), sizes)
    return samples[np.argsort(client * dataset.classes + dataset.class_of[samples], kind="stable")]


def count_labels(dataset: Dataset, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Count the samples of each client and class (clients, classes)."""
    cell = np.repeat(np.arange(len(sizes)), sizes) * dataset.classes + dataset.class_of[samples]
    return np.bincount(cell, minlength=len(sizes) * dataset.classes).reshape(len(sizes), dataset.classes)


def rank(sizes: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2, ... within each of consecutive groups of these sizes."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
