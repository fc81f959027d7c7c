"""A picture of a partition: how many samples of each class every client has, and its planted cluster.

Drawn before any training; reads a `Partition` and its `Dataset`, writes one image file.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfl.analysis.colours import HEAT, INK, RULE
from rayfl.analysis.colours import colour as cluster_colour
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition import Partition
from rayfl.errors import InputError

#: What figures may end in.
FIGURES = tuple(f".{name}" for name in sorted(FigureCanvasAgg.get_supported_filetypes()))

_MOST_DOTS = 120  # clients; beyond, dots would touch and a heat map says more
_MOST_NAMES = 40  # clients whose names fit under the figure
_TRAIN, _VALIDATION, _TEST = "#3b4a5a", "#6f8296", "#a9b8c6"


def draw_partition(partition: Partition, dataset: Dataset, path: str | Path) -> Path:
    """Draw classes against clients, with sizes above and planted clusters marked; return the file's path."""
    clusters = partition.true_cluster
    order = np.arange(partition.clients) if clusters is None else np.argsort(clusters, kind="stable")
    counts = partition.label_counts(dataset, "all")[order]
    width = float(np.clip(2.5 + 0.16 * partition.clients, 7.0, 14.0))
    height = float(np.clip(2.6 + 0.24 * dataset.classes, 4.0, 9.0))
    # A Figure with its own canvas: pyplot would keep global state and might look for a screen.
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rows = figure.subplots(2, 1, sharex=True, height_ratios=[1, max(2.0, height - 2.6)])
    sizes, classes = rows[0], rows[1]

    _draw_sizes(sizes, partition.n_train[order], partition.n_validation[order], partition.n_test[order])
    if partition.clients <= _MOST_DOTS:
        _draw_dots(classes, counts, None if clusters is None else clusters[order])
    else:
        image = classes.imshow(
            (counts / counts.sum(axis=1, keepdims=True)).T,
            aspect="auto",
            origin="lower",
            cmap=LinearSegmentedColormap.from_list("share", HEAT),
            vmin=0,
            interpolation="antialiased",
        )
        figure.colorbar(image, ax=classes, label="share of the client's samples", fraction=0.04, pad=0.01)
    if clusters is not None:
        _mark_clusters(sizes, classes, clusters[order], partition.transforms)

    classes.set_xlabel("client")
    classes.set_ylabel("class")
    classes.set_xlim(-0.6, partition.clients - 0.4)
    classes.set_ylim(-0.6, dataset.classes - 0.4)
    names = partition.client_names
    if names is not None and partition.clients <= _MOST_NAMES:
        labels = [names[client] if len(names[client]) <= 24 else f"{names[client][:23]}…" for client in order]
        classes.set_xticks(np.arange(partition.clients), labels, rotation=90, parse_math=False)
    else:
        classes.xaxis.set_major_locator(MaxNLocator(integer=True))
    classes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    for axes in (sizes, classes):
        axes.tick_params(length=0, labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c8ced4")
    try:
        figure.savefig(path, dpi=160)
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


def _draw_dots(axes: Axes, counts: np.ndarray, clusters: np.ndarray | None) -> None:
    client, label = np.nonzero(counts)
    some = counts[client, label]
    colours = [cluster_colour(0 if clusters is None else clusters[i]) for i in client]
    # The area stands for the count; the largest dot just fills the column of its client.
    largest = np.clip(6000 / len(counts), 30, 260)
    axes.scatter(client, label, s=largest * some / counts.max(), c=colours, alpha=0.85, linewidths=0)
    axes.grid(axis="y", color="#eef1f4", linewidth=0.8)
    axes.set_axisbelow(True)


def _mark_clusters(sizes: Axes, classes: Axes, clusters: np.ndarray, transforms: tuple[Transform, ...]) -> None:
    """Put a bar over each cluster, its name where there is room, and a line where the next begins."""
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
            name = _transform_name(transforms[k]) if transforms else f"cluster {k}"
            classes.annotate(
                name,
                ((start + end - 1) / 2, 1.03),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                fontsize=8,
                color=colour,
                annotation_clip=False,
            )


def _transform_name(transform: Transform) -> str:
    if transform.labels is not None and transform.labels != tuple(range(len(transform.labels))):
        return "labels permuted"
    if transform.invert:
        return "inverted"
    angle = 90 * transform.turns + transform.degrees
    return f"turned by {angle:g}°" if angle else "as it is"
