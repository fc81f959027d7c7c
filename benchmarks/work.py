"""The work that is measured: networks and the data they are trained on, as rayfl configs.

The data are CIFAR-10 and Fashion-MNIST if $RAYFL_DATA has them, otherwise the same number of generated
images of the same shape. The times are the same, and the benchmarks run anywhere.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config import Config, load_config

STEPS, BATCH = 10, 32
PROCESSES = 2
LAST_ROUND = 1_000_000  # so large that no benchmark reaches it: the last round of a run is special

#: The files by which a data set is recognised in $RAYFL_DATA.
_FILES = {"cifar10": ("cifar10.npz", "cifar-10-batches-py"), "fashion_mnist": ("FashionMNIST",), "tiny": ()}
_SHAPES = {"cifar10": (32, 32, 3), "fashion_mnist": (28, 28), "tiny": (8, 8)}


@dataclass(frozen=True)
class Work:
    """A network, its data, and how many clients there are, and how many take part in a round."""

    title: str
    model: str
    data: str
    clients: int = 100
    cohort: int = 100
    samples: int = 60_000
    lr: float = 0.05
    steps: int = STEPS


WORKS = [
    Work("CIFAR CNN", "thesis_cifar10", "cifar10"),
    Work("Fashion-MNIST CNN", "thesis_fashion_mnist", "fashion_mnist"),
    # FedAC's own setting: a quarter of the clients in each round.
    Work("FedAC's convnet", "fedac_cnn", "cifar10", cohort=25),
    # A step takes a second, so there are few clients, steps and images, but enough test images for both processes.
    # With a higher learning rate, training diverges at first, and the two sides' rounding errors grow until their
    # accuracies differ.
    Work("resnet9", "resnet9", "cifar10", clients=4, cohort=4, samples=7_200, lr=0.005, steps=5),
    Work("tiny CNN, 8 x 8", "digits_cnn", "tiny"),
]


def configured(
    work: Work, method: Mapping[str, Any], folder: Path, partition: Mapping[str, Any], **more: Any
) -> Config:
    """Return the config of a work with a method, on Ray with one actor per process; data goes into `folder`."""
    return load_config(
        {
            "rounds": LAST_ROUND,
            "data": _data(work, folder),
            "partition": {"clients": work.clients, **partition},
            "model": {"name": work.model},
            "method": dict(method),
            "local": {"steps": work.steps, "batch_size": BATCH, "lr": work.lr},
            "participation": {"count": work.cohort},
            "ray": {"actors": PROCESSES},
            **more,
        }
    )


def _data(work: Work, folder: Path) -> dict[str, Any]:
    root = os.environ.get("RAYFL_DATA")
    limit = {"limit": work.samples} if work.samples < 60_000 else {}
    if root and any((Path(root) / name).exists() for name in _FILES[work.data]):
        return {"source": work.data, "root": root, **limit}
    path = folder / f"{work.data}-{work.samples}.npz"
    if not path.exists():
        images, labels = planted_images(work.samples, _SHAPES[work.data])
        cut = work.samples * 5 // 6
        np.savez(
            path,
            train_images=images[:cut],
            train_labels=labels[:cut],
            test_images=images[cut:],
            test_labels=labels[cut:],
        )
    return {"source": "npz", "path": str(path)}


def planted_images(count: int, shape: tuple[int, ...], classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy copies of one random image per class (count, *shape), and their classes, which can be learned."""
    rng = np.random.default_rng(0)
    templates = rng.integers(64, 192, (classes, *shape), dtype=np.uint8)
    labels = rng.integers(0, classes, count, dtype=np.uint8)
    images = templates[labels]
    images += rng.integers(0, 64, images.shape, dtype=np.uint8)
    return images, labels
