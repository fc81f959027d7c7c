"""Files of numpy's `savez`: images by split as MedMNIST has them, or any arrays x and y."""

import zipfile
from pathlib import Path

import numpy as np

from rayfl.config import DataConfig
from rayfl.data.sources.arrays import ARRAYS, from_arrays, pixels_first
from rayfl.data.sources.files import existing
from rayfl.data.sources.samples import Samples, reason, validation_split
from rayfl.errors import InputError
from rayfl.host_memory import Need, memory_here, refuse_excess


class Npz:
    """Arrays in a file of numpy's."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read train_images, train_labels, ... or x, y, ... from data.path."""
        if column is not None:
            raise InputError(
                f"partition.column={column}: an npz file has no columns: put an array client with a name per sample"
                " into it, next to x and y, and leave partition.column out"
            )
        return read_npz(existing(config), config.place)


def read_npz(path: Path, where: str) -> Samples:
    """Read the arrays of a file; `where` names it in messages."""
    arrays = _unpacked(path, where)
    if "x" in arrays and "train_images" not in arrays:
        return from_arrays(arrays, where)
    splits = [split for split in ("train", "val", "test") if f"{split}_images" in arrays]
    if "train" not in splits:
        found = ", ".join(arrays) or "nothing"
        raise InputError(
            f"{where} has no train_images (found: {found}): name the arrays train_images, train_labels,"
            f" test_images, test_labels as MedMNIST does, or {', '.join(ARRAYS)}"
        )
    images, labels = [], []
    for split in splits:
        if f"{split}_labels" not in arrays:
            raise InputError(f"{where} has {split}_images but no {split}_labels: add them to the file")
        images.append(_pixels(arrays[f"{split}_images"], f"{where}: {split}_images"))
        targets = arrays[f"{split}_labels"]
        if targets.ndim == 2 and targets.shape[1] > 1:
            raise InputError(
                f"{where}: {split}_labels has {targets.shape[1]} labels per image: rayfl needs one class per image"
            )
        if targets.dtype.kind not in "iufb":
            raise InputError(
                f"{where}: the labels are of type {targets.dtype}: they must be whole numbers from 0, or numbers"
            )
        labels.append(targets.reshape(-1))
        if len(labels[-1]) != len(images[-1]):
            raise InputError(
                f"{where}: {split}_images has {len(images[-1])} images but {split}_labels {len(labels[-1])}"
                " labels: the two numbers must be equal"
            )
    shapes = {part.shape[1:] for part in images}
    if len(shapes) > 1:
        raise InputError(f"{where}: the splits have images of different shapes {sorted(shapes)}: make them one size")
    split_of = np.repeat(splits, [len(part) for part in labels])
    return Samples(
        np.concatenate(images),
        np.concatenate(labels),
        "image",
        split_of == "test",
        is_validation=validation_split(split_of),
    )


def _unpacked(path: Path, where: str) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:  # a small file may unpack to more than fits into memory
            unpacked = sum(member.file_size for member in archive.infolist())
        refuse_excess([Need(f"the arrays of {path.name}", unpacked, "the number of samples in it")], memory_here())
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} cannot be read as npz ({reason(error)}): write it with numpy.savez") from None


def _pixels(images: np.ndarray, where: str) -> np.ndarray:
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] > 4):
        raise InputError(f"{where} has shape {images.shape}: it must be (N, H, W) or (N, H, W, C) with C at most 4")
    whole = np.issubdtype(images.dtype, np.integer)
    if not whole or (images.dtype != np.uint8 and images.size and (images.min() < 0 or images.max() > 255)):
        raise InputError(f"{where} must hold whole numbers from 0 to 255, not {images.dtype}: save it as uint8")
    return pixels_first(images.astype(np.uint8, copy=False), last=True)
