"""How a method reaches its clients: the interface, what is counted, and the in-process federation."""

from rayfl.client.handed import Each, EvalModels, Mixture, Models, Overlay, Personal, Sent, everyone
from rayfl.client.objective import FeatureContrast, Linear, ParameterContrast, Proximal, Term
from rayfl.federation.interface import Federation
from rayfl.federation.library import distances, losses, shares_of_least_loss

__all__ = [
    "Each",
    "EvalModels",
    "FeatureContrast",
    "Federation",
    "Linear",
    "Mixture",
    "Models",
    "Overlay",
    "ParameterContrast",
    "Personal",
    "Proximal",
    "Sent",
    "Term",
    "distances",
    "everyone",
    "losses",
    "shares_of_least_loss",
]
