"""Draw the pictures of docs/heterogeneity.md: each part on scikit-learn's digits, and three combinations.

    python docs/heterogeneity.py

Writes docs/images/heterogeneity/*.png. The same code deals the partitions of runs.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rayfl.analysis.partition_figure import draw_partition
from rayfl.config import data_config, partition_config
from rayfl.data import Dataset, Partition, make_partition
from rayfl.data.sources import load_dataset
from rayfl.input_tree import load_yaml

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "images" / "heterogeneity"
LABELS: dict[str, dict[str, Any]] = {
    "iid": {"kind": "iid"},
    "dirichlet": {"kind": "dirichlet", "alpha": 0.3},
    "classes": {"kind": "classes", "classes": 2},
    "cluster_dirichlet": {"kind": "cluster_dirichlet"},
    "cluster_classes": {"kind": "cluster_classes"},
}
QUANTITIES: dict[str, dict[str, Any]] = {
    "range": {"kind": "range", "min": 20, "max": 120},
    "lognormal": {"kind": "lognormal", "sigma": 0.8},
    "power_law": {"kind": "power_law", "exponent": 1.0},
}
FEATURES: dict[str, dict[str, Any]] = {
    "rotation": {"angle": [0, 15, 90, 180]},
    "blur": {"sigma": [0, 0.5, 1, 2]},
    "noise": {"std": [0, 20, 50, 100]},
    "contrast": {"factor": [1, 0.5, 0.25, 2]},
    "brightness": {"shift": [0, 60, 120, -60]},
    "saturation": {"factor": [1, 0.5, 0, 2]},
    "channels": {"order": [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]},
    "inversion": {"clusters": [1]},
    "permutation": {},
}


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    digits = load_dataset(data_config(source="digits"), 0)
    for name, keys in LABELS.items():
        clusters = 4 if name.startswith("cluster_") else 1
        made = dealt(digits, clients=20, clusters=clusters, labels=keys)
        bars(f"labels_{name}", made, digits)
    for name, keys in QUANTITIES.items():
        bars(f"quantity_{name}", dealt(digits, clients=20, quantity=keys), digits)
    for name, keys in FEATURES.items():
        data = coloured(digits) if name in ("saturation", "channels") else digits
        clusters = 2 if name == "inversion" else 4
        samples(f"features_{name}", dealt(data, clients=8, clusters=clusters, features=[{"kind": name, **keys}]), data)
    for name, keys in {"swap": {"pairs": [[], [[0, 1]], [[2, 3]], [[0, 2]]]}, "permutation": {"labels": 3}}.items():
        made = dealt(digits, clients=8, clusters=4, concept=[{"kind": name, **keys}])
        samples(f"concept_{name}", made, digits)
    page = (HERE / "heterogeneity.md").read_text()
    combinations = re.findall(r"## (Combination \d).*?```yaml\n(.*?)```", page, re.DOTALL)
    for title, block in combinations:
        tree: Any = load_yaml(block, title)
        path = FOLDER / f"{title.lower().replace(' ', '_')}.png"
        draw_partition(make_partition(partition_config(**tree["partition"]), digits, 0), digits, path, dpi=70)


def dealt(data: Dataset, **keys: Any) -> Partition:
    """Return a composed partition."""
    return make_partition(partition_config(kind="composed", **keys), data, 0)


def coloured(data: Dataset) -> Dataset:
    """Return the digits in three colours, for parts that are about colour."""
    from dataclasses import replace

    tint = np.random.default_rng(0).integers(40, 256, (len(data), 3, 1, 1))
    inputs = (data.inputs.astype(np.int64) * tint // 255).astype(np.uint8)
    return replace(data, inputs=inputs, shift=np.zeros(3, np.float32), scale=np.ones(3, np.float32))


def bars(name: str, partition: Partition, data: Dataset) -> None:
    """Draw samples of each class for each client, stacked."""
    figure = Figure(figsize=(4.4, 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    counts = partition.label_counts(data, "all")
    tops = np.cumsum(counts, axis=1)
    for label in range(data.classes):
        colour = _viridis(label, data.classes)
        axes.bar(
            np.arange(len(counts)), counts[:, label], bottom=tops[:, label] - counts[:, label], color=colour, width=0.9
        )
    axes.set_ylabel("samples", fontsize=7)
    _plain(axes)
    figure.savefig(FOLDER / f"{name}.png", dpi=100)


def samples(name: str, partition: Partition, data: Dataset) -> None:
    """Draw the same samples as each cluster sees them."""
    from rayfl.analysis.partition_images import draw_samples, shown_clusters

    clusters = shown_clusters(partition, data)
    figure = Figure(figsize=(1.6 * len(clusters), 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, cluster in zip(np.atleast_1d(figure.subplots(1, len(clusters))), clusters, strict=True):
        draw_samples(axes, partition, data, cluster)
    figure.savefig(FOLDER / f"{name}.png", dpi=100)


def _viridis(number: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](number / max(1, count - 1))


def _plain(axes: Axes) -> None:
    axes.tick_params(length=0, labelsize=6)
    axes.set_xticks([])
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
