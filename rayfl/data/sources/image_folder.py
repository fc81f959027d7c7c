"""Folders of images: one folder per class, optionally under train, val and test."""

from pathlib import Path

import numpy as np

from rayfl.config import DataConfig
from rayfl.data.sources.files import existing
from rayfl.data.sources.samples import Samples, reason, validation_split
from rayfl.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


class ImageFolder:
    """A folder of images per class."""

    numbers = owners = False

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all images below data.path."""
        path, where = existing(config), config.place
        if not path.is_dir():
            raise InputError(f"{where} is a file: data.source=image_folder needs a folder with one folder per class")
        splits = [split for split in ("train", "val", "test") if (path / split).is_dir()]
        parts = [(path / split, split) for split in splits] if "train" in splits else [(path, "train")]
        names = sorted({folder.name for part, _ in parts for folder in _class_folders(part)})
        files = [
            (file, names.index(folder.name), split)
            for part, split in parts
            for folder in _class_folders(part)
            for file in sorted(folder.iterdir())
            if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not files:
            raise InputError(
                f"{where} has no images: it must be laid out as class/*.png, or as train/class/*.png and"
                " test/class/*.png (and val/class/*.png)"
            )
        images = _read_images([file for file, _, _ in files], where)
        labels, split_of = np.array([label for _, label, _ in files]), np.array([split for _, _, split in files])
        return Samples(images, labels, "image", split_of == "test", is_validation=validation_split(split_of))


def _class_folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _read_images(files: list[Path], where: str) -> np.ndarray:
    """Read all images, grey if every one is grey, else in colour."""
    from PIL import Image

    arrays: list[np.ndarray] = []
    for file in files:
        try:
            with Image.open(file) as image:
                arrays.append(np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB")))
        except Exception as error:
            raise InputError(
                f"{where}: {file} is not a readable image ({reason(error)}): replace or remove it"
            ) from None
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (h, w), (first_h, first_w) = arrays[-1].shape[:2], arrays[0].shape[:2]
            raise InputError(
                f"{where}: {file} is {w} x {h} pixels but {files[0]} is {first_w} x {first_h}: resize all to one size"
            )
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2) for array in arrays]
        return np.stack(arrays).transpose(0, 3, 1, 2)
    return np.stack(arrays)[:, None]
