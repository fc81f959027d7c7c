"""The same few samples as each planted cluster sees them: rows of small images for figures of partitions."""

import numpy as np
from matplotlib.axes import Axes

from rayfl.analysis.colours import INK
from rayfl.analysis.colours import colour as cluster_colour
from rayfl.data.dataset import Dataset
from rayfl.data.partition import Partition

#: Maximum of clusters that are shown, and of samples of each.
MOST_CLUSTERS, SAMPLES = 8, 4


def shown_clusters(partition: Partition, dataset: Dataset) -> list[int]:
    """Return the first few clusters, if samples are images and clients have transforms; otherwise none."""
    if dataset.kind != "image" or dataset.input_shape[0] not in (1, 3) or partition.transform_of is None:
        return []
    clusters = [0] if partition.true_cluster is None else np.unique(partition.true_cluster).tolist()
    return clusters[:MOST_CLUSTERS]


def draw_samples(axes: Axes, partition: Partition, dataset: Dataset, cluster: int) -> None:
    """Draw the samples as the first client of a cluster sees them, side by side, with their labels."""
    clusters = partition.true_cluster
    client = 0 if clusters is None else int(np.argmax(clusters == cluster))
    samples = _different(partition.train, dataset)
    seen = dataset.seen(samples, partition.transform_for(client))
    gap = np.full((*seen.shape[1:3], 1), seen.max(initial=0), seen.dtype)
    strip = np.concatenate([part for image in seen for part in (image, gap)][:-1], axis=2)
    axes.imshow(_displayed(strip), cmap="gray", interpolation="nearest")
    orders = None if dataset.targets == "number" else partition.label_orders(dataset.classes)
    labels = dataset.labels[samples] if orders is None else orders[client, dataset.labels[samples]]
    if dataset.targets == "class":
        width = seen.shape[3]
        middles = np.arange(len(samples)) * (width + 1) + (width - 1) / 2
        axes.set_xticks(middles, [str(int(label)) for label in labels])
    else:
        axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=7, colors=INK, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)
    name = "samples, as client 0 sees them" if clusters is None else f"cluster {cluster}"
    axes.set_title(name, fontsize=8, color=INK if clusters is None else cluster_colour(cluster), pad=3)


def _different(pool: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Return one sample of each of the first few classes; without classes, the first samples."""
    if dataset.targets == "class":
        _, first = np.unique(dataset.labels[pool], return_index=True)
        pool = pool[first[:SAMPLES]]
    return pool[:SAMPLES].astype(np.intp)


def _displayed(image: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) as matplotlib takes it: values from 0 to 1."""
    low, high = (0.0, 255.0) if image.dtype == np.uint8 else (float(image.min()), float(image.max()))
    scaled = (image.astype(np.float64) - low) / max(high - low, 1e-9)
    return scaled[0] if len(scaled) == 1 else np.moveaxis(scaled, 0, 2)
