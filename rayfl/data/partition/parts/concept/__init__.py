"""What is done to labels: one class per file."""

from rayfl.data.partition.parts.concept.concept import Concept
from rayfl.data.partition.parts.concept.permutation import LabelPermutation
from rayfl.data.partition.parts.concept.swap import Swap

__all__ = ["CONCEPTS", "Concept", "LabelPermutation", "Swap"]

#: The concepts by name; any other is an import path.
CONCEPTS: dict[str, type[Concept]] = {concept.name: concept for concept in (Swap, LabelPermutation)}
