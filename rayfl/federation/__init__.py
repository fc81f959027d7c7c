"""How a method reaches its clients: the interface, the in-process federation, and the Ray federation."""

from rayfl.federation.interface import Federation, Models, Pull, everyone

__all__ = ["Federation", "Models", "Pull", "everyone"]
