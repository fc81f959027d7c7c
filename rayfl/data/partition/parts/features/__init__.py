"""What is done to raw inputs: one class per file. Arithmetic in whole numbers gives the same bits on every machine."""

from rayfl.data.partition.parts.features.blur import Blur
from rayfl.data.partition.parts.features.brightness import Brightness
from rayfl.data.partition.parts.features.channels import Channels
from rayfl.data.partition.parts.features.contrast import Contrast
from rayfl.data.partition.parts.features.feature import Feature
from rayfl.data.partition.parts.features.inversion import Inversion
from rayfl.data.partition.parts.features.noise import Noise
from rayfl.data.partition.parts.features.own import OwnFeature
from rayfl.data.partition.parts.features.permutation import PixelPermutation
from rayfl.data.partition.parts.features.rotation import Rotation
from rayfl.data.partition.parts.features.saturation import Saturation

__all__ = [
    "FEATURES",
    "Blur",
    "Brightness",
    "Channels",
    "Contrast",
    "Feature",
    "Inversion",
    "Noise",
    "OwnFeature",
    "PixelPermutation",
    "Rotation",
    "Saturation",
]

_BUILT_IN = (Rotation, Blur, Noise, Contrast, Brightness, Saturation, Channels, Inversion, PixelPermutation)
#: The features by name; any other is an import path.
FEATURES: dict[str, type[Feature]] = {feature.name: feature for feature in _BUILT_IN}
