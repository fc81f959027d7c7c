"""Random changes to the images that clients train on: shifted by some pixels, mirrored left to right."""

from collections.abc import Collection

import numpy as np
import torch


class Augmentation:
    """The random draws for all samples of one client's round, made at once, so the batch size does not change them."""

    def __init__(
        self, kinds: Collection[str], padding: int, rng: np.random.Generator, samples: int, fill: np.ndarray
    ) -> None:
        """Draw for this number of samples; `fill` (channels,) is the colour outside the image: black, normalised."""
        self._padding = padding
        self._fill = torch.from_numpy(np.asarray(fill, np.float32))
        # Always draw both, so that neither depends on whether the other is in use.
        moves = rng.integers(0, 2 * padding + 1, (samples, 2))
        flips = rng.random(samples) < 0.5
        self._moves = torch.from_numpy(moves) if "crop" in kinds else None
        self._flips = torch.from_numpy(flips) if "flip" in kinds else None

    def apply(self, images: torch.Tensor, first: int) -> torch.Tensor:
        """Return the changed images (n, C, H, W); `first` is the number of the first sample within the round."""
        these = slice(first, first + len(images))
        if self._moves is not None:
            images = _moved(images, self._moves[these].to(images.device), self._padding, self._fill.to(images.device))
        if self._flips is not None:
            flips = self._flips[these].to(images.device)
            images = torch.where(flips[:, None, None, None], images.flip(3), images)
        return images


def _moved(images: torch.Tensor, moves: torch.Tensor, padding: int, fill: torch.Tensor) -> torch.Tensor:
    """Pad each image by `padding` pixels, then cut it out again at its own offset, from 0 to 2 * padding."""
    count, _, height, width = images.shape
    wide = fill[None, :, None, None].repeat(count, 1, height + 2 * padding, width + 2 * padding)
    wide[:, :, padding : padding + height, padding : padding + width] = images
    rows = moves[:, 0, None] + torch.arange(height, device=images.device)
    columns = moves[:, 1, None] + torch.arange(width, device=images.device)
    which = torch.arange(count, device=images.device)
    return wide[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()
