"""Images as one array: grey if all are grey, else in colour, and of one size."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rayfl.data.sources.samples import reason
from rayfl.errors import InputError


def stacked_images(images: Iterable[tuple[str, Callable[[], Any]]], size: int | None, where: str) -> np.ndarray:
    """Return uint8 (N, C, H, W) of images, each with its name for messages and a function that opens it.

    With `size`, all images are resized to this many pixels in height and width.
    """
    arrays: list[np.ndarray] = []
    first = ""
    for name, opened in images:
        try:
            with opened() as image:
                arrays.append(_pixels(image, size))
        except Exception as error:
            raise InputError(
                f"{where}: {name} is not a readable image ({reason(error)}): replace or remove it"
            ) from None
        first = first or name
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (h, w), (first_h, first_w) = arrays[-1].shape[:2], arrays[0].shape[:2]
            raise InputError(
                f"{where}: {name} is {w} x {h} pixels but {first} is {first_w} x {first_h}: make all one size, such as"
                f" {min(first_h, first_w)}, with data.size"
            )
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2) for array in arrays]
        return np.stack(arrays).transpose(0, 3, 1, 2)
    return np.stack(arrays)[:, None]


def _pixels(image: Any, size: int | None) -> np.ndarray:
    from PIL.Image import Resampling

    image = image.convert("L" if image.mode in ("L", "1") else "RGB")
    return np.asarray(image if size is None else image.resize((size, size), Resampling.BILINEAR))
