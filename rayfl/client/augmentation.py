"""Random changes of the images that clients train on: moved by some pixels, mirrored left to right."""

from collections.abc import Collection

import numpy as np
import torch


class Augmentation:
    """The draws for the samples of one client's round, made at once: how batches are cut does not change them."""

    def __init__(
        self, kinds: Collection[str], padding: int, rng: np.random.Generator, samples: int, fill: np.ndarray
    ) -> None:
        """Draw for this number of samples; `fill` (channels,) is the colour beyond the edge: black, normalised."""
        self._padding = padding
        self._fill = torch.from_numpy(np.asarray(fill, np.float32))
        # Both are always drawn, so that one does not depend on the other.
        moves = rng.integers(0, 2 * padding + 1, (samples, 2))
        flips = rng.random(samples) < 0.5
        self._moves = torch.from_numpy(moves) if "crop" in kinds else None
        self._flips = torch.from_numpy(flips) if "flip" in kinds else None

    def apply(self, images: torch.Tensor, first: int) -> torch.Tensor:
        """Return images (n, C, H, W), the samples from number `first` on, changed."""
        these = slice(first, first + len(images))
        if self._moves is not None:
            images = _moved(images, self._moves[these].to(images.device), self._padding, self._fill.to(images.device))
        if self._flips is not None:
            flips = self._flips[these].to(images.device)
            images = torch.where(flips[:, None, None, None], images.flip(3), images)
        return images


def _moved(images: torch.Tensor, moves: torch.Tensor, padding: int, fill: torch.Tensor) -> torch.Tensor:
    """Cut each image out of a larger one with an edge of `padding` pixels, at its own place, (0, 0) to twice that."""
    count, _, height, width = images.shape
    wide = fill[None, :, None, None].repeat(count, 1, height + 2 * padding, width + 2 * padding)
    wide[:, :, padding : padding + height, padding : padding + width] = images
    rows = moves[:, 0, None] + torch.arange(height, device=images.device)
    columns = moves[:, 1, None] + torch.arange(width, device=images.device)
    which = torch.arange(count, device=images.device)
    return wide[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()
