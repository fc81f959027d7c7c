"""Means of models as pure functions on arrays: no torch, no Ray, no clients."""

from rayfl.aggregation.exact import ExactSum, fraction_bits, mean_of

__all__ = ["ExactSum", "fraction_bits", "mean_of"]
