"""How a method reaches its clients: the interface, the in-process federation, and the Ray federation."""

from rayfl.federation.interface import Contrast, Federation, Mixture, Models, Overlay, Own, Pull, everyone

__all__ = ["Contrast", "Federation", "Mixture", "Models", "Overlay", "Own", "Pull", "everyone"]
