"""How a method reaches its clients: the interface, what is counted, and the in-process federation."""

from rayfl.federation.interface import Contrast, Federation, Mixture, Models, Overlay, Own, Pull, everyone

__all__ = ["Contrast", "Federation", "Mixture", "Models", "Overlay", "Own", "Pull", "everyone"]
