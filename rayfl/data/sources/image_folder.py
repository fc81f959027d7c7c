"""Folders of images: one folder per class, optionally under train, val and test."""

from functools import partial
from pathlib import Path

import numpy as np

from rayfl.config import DataConfig
from rayfl.config.data import ImageFolderData
from rayfl.data.sources.files import existing
from rayfl.data.sources.pixels import stacked_images
from rayfl.data.sources.samples import Samples, validation_split
from rayfl.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


class ImageFolder:
    """A folder of images per class."""

    numbers = owners = False

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all images below data.path."""
        from PIL import Image

        assert isinstance(config, ImageFolderData)
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
        images = stacked_images(((str(file), partial(Image.open, file)) for file, _, _ in files), config.size, where)
        labels, split_of = np.array([label for _, label, _ in files]), np.array([split for _, _, split in files])
        return Samples(images, labels, "image", split_of == "test", is_validation=validation_split(split_of))


def _class_folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
