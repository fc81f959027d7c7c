"""scikit-learn's digits: 1797 grey images of 8 x 8 pixels, in the package itself."""

import numpy as np

from rayfl.config import DataConfig
from rayfl.data.sources.samples import Samples


class Digits:
    """scikit-learn's digits."""

    numbers = owners = False

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read them, with pixels from 0 to 255."""
        from sklearn.datasets import load_digits

        data = load_digits()
        pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)
        return Samples(pixels[:, None], data.target, "image", np.zeros(len(pixels), bool))
