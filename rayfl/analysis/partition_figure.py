"""A picture of a partition: samples and classes of every client, by planted cluster, and what clusters see.

Drawn before any training; reads a `Partition` and its `Dataset`, writes one image file.
"""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfl.analysis.colours import INK, RULE
from rayfl.analysis.colours import colour as cluster_colour
from rayfl.analysis.partition_images import draw_samples, shown_clusters
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition import Partition
from rayfl.errors import InputError

#: Endings that a figure's file name may have.
FIGURES = tuple(f".{name}" for name in sorted(FigureCanvasAgg.get_supported_filetypes()))

_MOST_BARS = 120  # with more clients, the gaps between the bars would hide the bars
_MOST_NAMES = 40  # clients whose names fit under the figure
_TRAIN, _VALIDATION, _TEST = "#3b4a5a", "#6f8296", "#a9b8c6"


def draw_partition(partition: Partition, dataset: Dataset, path: str | Path, dpi: int = 160) -> Path:
    """Draw the classes of each client by planted cluster, sizes above and samples below; return the file's path."""
    clusters = partition.true_cluster
    order = np.arange(partition.clients) if clusters is None else np.argsort(clusters, kind="stable")
    counts = partition.label_counts(dataset, "all")[order]
    images = shown_clusters(partition, dataset)
    width = float(np.clip(2.5 + 0.16 * partition.clients, 7.0, 14.0))
    per_row = 4
    image_rows = -(-len(images) // per_row)
    height = 5.0 + 0.9 * image_rows
    # A Figure with its own canvas: pyplot would keep global state and might need a display.
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 + image_rows, 1, height_ratios=[1.2, 3.0, *[0.9] * image_rows])
    sizes = figure.add_subplot(grid[0])
    classes = figure.add_subplot(grid[1], sharex=sizes)
    for row in range(image_rows):
        cells = grid[2 + row].subgridspec(1, per_row)
        for place, cluster in enumerate(images[row * per_row : (row + 1) * per_row]):
            draw_samples(figure.add_subplot(cells[place]), partition, dataset, cluster)

    _draw_sizes(sizes, partition.n_train[order], partition.n_validation[order], partition.n_test[order])
    _draw_shares(figure, classes, counts)
    if clusters is not None:
        _mark_clusters(sizes, classes, clusters[order], _cluster_names(partition))

    classes.set_xlabel("client")
    classes.set_ylabel("share of samples")
    classes.set_xlim(-0.6, partition.clients - 0.4)
    classes.set_ylim(0, 1)
    names = partition.client_names
    if names is not None and partition.clients <= _MOST_NAMES:
        labels = [names[client] if len(names[client]) <= 24 else f"{names[client][:23]}…" for client in order]
        classes.set_xticks(np.arange(partition.clients), labels, rotation=90, parse_math=False)
    else:
        classes.xaxis.set_major_locator(MaxNLocator(integer=True))
    sizes.tick_params(labelbottom=False)
    for axes in (sizes, classes):
        axes.tick_params(length=0, labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c8ced4")
    try:
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise InputError(f"-o {path} cannot be written: {error.strerror or error}; name another file") from None
    return Path(path)


def _draw_sizes(axes: Axes, n_train: np.ndarray, n_validation: np.ndarray, n_test: np.ndarray) -> None:
    edges = np.arange(len(n_train) + 1) - 0.5
    axes.stairs(n_train + n_validation + n_test, edges, fill=True, color=_TEST, label="test")
    if n_validation.any():
        axes.stairs(n_train + n_validation, edges, fill=True, color=_VALIDATION, label="validation")
    axes.stairs(n_train, edges, fill=True, color=_TRAIN, label="train")
    axes.set_ylabel("samples")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        frameon=False,
        fontsize=8,
        reverse=True,
        borderpad=0,
    )


def _draw_shares(figure: Figure, axes: Axes, counts: np.ndarray) -> None:
    """Stack the shares of the classes for each client, one colour per class."""
    clients, labels = counts.shape
    tops = np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True)
    edges = np.arange(clients + 1) - 0.5
    colours = ListedColormap(_class_colours(labels))
    for label in range(labels):
        below = tops[:, label - 1] if label else np.zeros(clients)
        axes.stairs(tops[:, label], edges, baseline=below, fill=True, color=colours(label), lw=0)
    if clients <= _MOST_BARS:  # gaps between clients
        axes.vlines(edges[1:-1], 0, 1, color="white", lw=1.5)
    scale = ScalarMappable(BoundaryNorm(np.arange(labels + 1) - 0.5, labels), colours)
    bar = figure.colorbar(scale, ax=axes, label="class", fraction=0.04, pad=0.01)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.outline.set_visible(False)


def _class_colours(classes: int) -> list[str]:
    """Return the colours of clusters if there are enough for the classes, else a scale from dark to light."""
    if classes <= 8:
        return [cluster_colour(number) for number in range(classes)]
    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 1, classes))]


def _cluster_names(partition: Partition) -> dict[int, str]:
    """Return the text above each cluster: the transform that all of its clients share, or else its number."""
    assert partition.true_cluster is not None
    names = {}
    for cluster in np.unique(partition.true_cluster).tolist():
        names[cluster] = f"cluster {cluster}"
        if partition.transform_of is not None:
            numbers = np.unique(partition.transform_of[partition.true_cluster == cluster])
            names[cluster] = transform_name(partition.transforms[numbers[0]]) if len(numbers) == 1 else names[cluster]
    return names


def _mark_clusters(sizes: Axes, classes: Axes, clusters: np.ndarray, names: dict[int, str]) -> None:
    """Draw a bar above each cluster, its name if there is room, and lines between clusters."""
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    ends = np.append(starts[1:], len(clusters))
    for start, end in zip(starts, ends, strict=True):
        k = int(clusters[start])
        colour = cluster_colour(k)
        classes.axvspan(start - 0.42, end - 0.58, ymin=1.0, ymax=1.02, color=colour, clip_on=False, lw=0)
        if start:
            for axes in (sizes, classes):
                axes.axvline(start - 0.5, color=RULE, linewidth=0.8, linestyle=(0, (3, 3)))
        if end - start >= len(clusters) / 12:
            classes.annotate(
                names[k],
                ((start + end - 1) / 2, 1.03),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                fontsize=8,
                color=colour,
                annotation_clip=False,
            )


def transform_name(transform: Transform) -> str:
    """Return what a transform does, in a few words."""
    words = []
    angle = 90 * transform.turns + transform.degrees
    words += [f"turned by {angle:g}°"] if angle else []
    words += ["inverted"] if transform.invert else []
    words += [getattr(step, "name", "") or getattr(step, "path", "changed") for step in transform.steps]
    changed = transform.labels is not None and transform.labels != tuple(range(len(transform.labels)))
    words += ["labels permuted"] if changed else []
    return ", ".join(words) or "as it is"
