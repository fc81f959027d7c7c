"""Finding the files of a source."""

import os
from pathlib import Path

from rayfl.config import DataConfig
from rayfl.errors import InputError
from rayfl.input_tree import expanded


def data_root(config: DataConfig) -> Path:
    """Return the folder of the downloaded sets."""
    return expanded(config.root or os.environ.get("RAYFL_DATA") or "data")


def existing(config: DataConfig) -> Path:
    """Return data.path, which must be there: from the current folder, or else in the folder of the downloaded sets."""
    path = expanded(config.path)  # type: ignore[attr-defined]  # sources of files have one
    try:
        found = path.exists()
        if not found and (data_root(config) / path).exists():
            return data_root(config) / path
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise InputError(f"{config.place} cannot be read: {error.strerror}: correct the path") from None
    if not found:
        raise InputError(f"{config.place} does not exist (looked for {path.resolve()}): correct the path")
    return path
