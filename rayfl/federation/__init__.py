"""How a method reaches its clients: the interface, what is counted, and the in-process federation."""

from rayfl.client.handed import Each, Mixture, Models, Overlay, Own, Tested, everyone
from rayfl.client.objective import FeatureContrast, Linear, ParameterContrast, Proximal, Term
from rayfl.federation.interface import Federation

__all__ = [
    "Each",
    "FeatureContrast",
    "Federation",
    "Linear",
    "Mixture",
    "Models",
    "Overlay",
    "Own",
    "ParameterContrast",
    "Proximal",
    "Term",
    "Tested",
    "everyone",
]
