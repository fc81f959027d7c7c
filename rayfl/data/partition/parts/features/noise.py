"""Noise that is part of the sample: the same each time that it is seen."""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.partition.parts.features.feature import Feature, in_256ths

_BITS = 12  # fractional bits of a normal draw
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Noise(Feature):
    """Gaussian noise of deviation `std` in raw values; the draws depend on `seed`, sample and place alone.

    >>> noisy = Noise(std=20, seed=7).apply(np.full((2, 1, 2, 2), 128, np.uint8), np.array([5, 3]))
    >>> np.array_equal(noisy[1:], Noise(std=20, seed=7).apply(np.full((1, 1, 2, 2), 128, np.uint8), np.array([3])))
    True
    """

    name: ClassVar[str] = "noise"
    needs: ClassVar[Literal["pixels", "image", "array"]] = "array"
    seeded: ClassVar[Literal["no", "part", "each"]] = "part"

    std: float = 0.0
    seed: int = 0

    @property
    def nothing(self) -> bool:
        """Whether it leaves inputs as they are."""
        return self.std == 0

    def apply(self, inputs: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the inputs with their noise; pixels stay within 0 and 255."""
        drawn = normal_draws(self.seed, samples, int(np.prod(inputs.shape[1:]))).reshape(inputs.shape)
        if inputs.dtype != np.uint8:
            return inputs + drawn.astype(np.float32) * np.float32(self.std / 2**_BITS)
        # In whole numbers: draws reach 2^15 and the deviation 2^16, so products stay below 2^31.
        noise = drawn * np.int32(in_256ths(self.std))
        noise += np.int32(1 << (_BITS + 7))
        noise >>= _BITS + 8
        noise += inputs
        return np.clip(noise, 0, 255, out=noise).astype(np.uint8)


def normal_draws(seed: int, samples: np.ndarray, count: int) -> np.ndarray:
    """Return `count` standard normal draws per sample (n, count), in whole 4096ths, int32.

    Hashed from seed, sample and place (splitmix64), four from each 64 bits, so that no draw depends on another.
    """
    with np.errstate(over="ignore"):  # whole numbers modulo 2^64
        keys = _mixed(samples.astype(np.uint64) * _GOLDEN + np.uint64(seed))
        words = np.arange(1, -(-count // 4) + 1, dtype=np.uint64) * _GOLDEN
        hashed = _mixed(keys[:, None] + words)
    places = hashed.astype("<u8", copy=False).view("<u2")[:, :count]
    return _normal_table()[places]


def _mixed(x: np.ndarray) -> np.ndarray:
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@lru_cache(maxsize=1)
def _normal_table() -> np.ndarray:
    """Return the normal quantiles at the middles of 2^16 equal steps; they add up to 0."""
    inverse = NormalDist().inv_cdf
    # Rounded, since logarithms may differ in their last bits from machine to machine.
    upper = np.array([inverse(0.5 + (i + 0.5) / 2**16) for i in range(2**15)])
    whole = np.rint(np.round(upper * 2**_BITS, 6)).astype(np.int32)
    return np.concatenate([-whole[::-1], whole])
