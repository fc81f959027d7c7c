"""Means of models as pure functions on arrays: no torch, no Ray, no clients."""

from rayfl.aggregation.damped import damped_mean
from rayfl.aggregation.exact import ExactSum, fraction_bits, mean_of
from rayfl.aggregation.trimmed import trimmed_mean

__all__ = ["ExactSum", "damped_mean", "fraction_bits", "mean_of", "trimmed_mean"]
