"""How many samples clients have: one class per file."""

from rayfl.data.partition.parts.quantity.given import Sizes
from rayfl.data.partition.parts.quantity.lognormal import Lognormal
from rayfl.data.partition.parts.quantity.power_law import PowerLaw
from rayfl.data.partition.parts.quantity.quantity import Quantity
from rayfl.data.partition.parts.quantity.range import Range

__all__ = ["QUANTITIES", "Lognormal", "PowerLaw", "Quantity", "Range", "Sizes"]

#: The quantities by name; any other is an import path.
QUANTITIES: dict[str, type[Quantity]] = {quantity.name: quantity for quantity in (Range, Lognormal, PowerLaw, Sizes)}
