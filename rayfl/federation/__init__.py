"""How a method reaches its clients: the interface, what is counted, and the in-process federation."""

from rayfl.client.handed import Each, Mixture, Models, Overlay, Own, Sent, Tested, everyone
from rayfl.client.objective import FeatureContrast, Linear, ParameterContrast, Proximal, Term
from rayfl.federation.interface import Federation
from rayfl.federation.library import distances, losses, shares_of_least_loss

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
    "Sent",
    "Term",
    "Tested",
    "distances",
    "everyone",
    "losses",
    "shares_of_least_loss",
]
