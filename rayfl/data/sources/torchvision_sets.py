"""The well-known sets, in the files that torchvision reads and downloads; MNIST also with its writers."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config import DataConfig
from rayfl.data.sources.files import data_root
from rayfl.data.sources.npz import read_npz
from rayfl.data.sources.owners import need_columns, owners_of
from rayfl.data.sources.samples import Samples, reason
from rayfl.data.sources.tables import read_table
from rayfl.errors import InputError

WRITERS_FILE = "mnist-writers.csv.gz"


class TorchvisionSet:
    """mnist, fashion_mnist, cifar10, cifar100 or svhn."""

    numbers = False

    def __init__(self, owners: bool = False) -> None:
        self.owners = owners

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read both splits; fetch the files if they are not there."""
        root = data_root(config)
        if config.source == "cifar10" and (root / "cifar10.npz").exists():
            return read_npz(root / "cifar10.npz", f"data.root={root}: cifar10.npz")
        images, labels = zip(*(_split(config.source, root, train) for train in (True, False)), strict=True)
        samples = Samples(
            np.concatenate(images),
            np.concatenate(labels),
            "image",
            np.repeat([False, True], [len(part) for part in labels]),
        )
        return samples if column is None else _with_writers(samples, root, column)


def _split(source: str, root: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read one split as uint8 (N, C, H, W) and its labels; fetch the files only if they are not there."""
    from torchvision import datasets

    if source == "svhn":

        def load(download: bool) -> Any:
            return datasets.SVHN(str(root), split="train" if train else "test", download=download)
    else:
        classes = {
            "mnist": datasets.MNIST,
            "fashion_mnist": datasets.FashionMNIST,
            "cifar10": datasets.CIFAR10,
            "cifar100": datasets.CIFAR100,
        }

        def load(download: bool) -> Any:
            return classes[source](str(root), train=train, download=download)

    # torchvision prints its progress; stdout belongs to the results of the command line.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            data = load(download=False)
        except RuntimeError:  # torchvision's error if files are missing, or not the original ones
            try:
                data = load(download=True)
            except Exception as error:
                raise InputError(
                    f"data.source={source}: no usable files under data.root={root.resolve()}, and the"
                    f" download failed ({reason(error)}): put the files there, or point data.root or"
                    " $RAYFL_DATA at a folder that has them"
                ) from None
        except Exception as error:
            raise InputError(
                f"data.source={source}: the files under data.root={root.resolve()} are damaged"
                f" ({reason(error)}): delete them, and put whole ones there or let them be downloaded again"
            ) from None
    images = np.asarray(data.data)
    labels = np.asarray(data.labels if source == "svhn" else data.targets)
    if images.ndim == 3:
        return images[:, None], labels
    return (images if source == "svhn" else images.transpose(0, 3, 1, 2)), labels


def _with_writers(samples: Samples, root: Path, column: str) -> Samples:
    path = root / WRITERS_FILE
    where = f"data.root={root}: {WRITERS_FILE}"
    if not path.exists():
        raise InputError(
            f"partition.column={column}: data.source=mnist needs the file {WRITERS_FILE} in"
            f" data.root={root.resolve()} (columns split, index, label, writer): put it there, or use another"
            " partition.kind"
        )
    table = read_table(path, where)
    need_columns(list(table.columns), ["split", "index", "label", column], where, "partition.column")
    position = table["index"].to_numpy() + np.where(table["split"] == "test", np.count_nonzero(~samples.is_test), 0)
    if not np.array_equal(np.sort(position), np.arange(len(samples.labels))):
        raise InputError(f"{where} must name every MNIST image once, by split and index: get a complete copy of it")
    table = table.iloc[np.argsort(position)]
    if not np.array_equal(table["label"].to_numpy(), samples.labels):
        raise InputError(f"{where} has other labels than MNIST itself: get the file that belongs to this copy")
    owner, names = owners_of(table, [column], where)
    return replace(samples, owner=owner, owner_names=names)
