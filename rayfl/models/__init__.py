"""Networks: the zoo and import paths (`zoo`), and their weights as one flat vector and back (`flat`).

Training them is in `rayfl.training`; what travels between clients and server is decided in `rayfl.methods`.
"""

from rayfl.models.flat import FlatModel, Layout, Part
from rayfl.models.zoo import ZOO, build_model

__all__ = ["ZOO", "FlatModel", "Layout", "Part", "build_model"]
