"""Networks: by name (`zoo`) or from the user (`own`); their weights as one flat vector (`flat`); its parts (`layout`).

Training is in `rayfl.client`; what travels between clients and server is decided in `rayfl.methods`.
"""

from typing import TYPE_CHECKING, Any

from rayfl.models.layout import Layout, Part

if TYPE_CHECKING:
    from rayfl.models.flat import FlatModel
    from rayfl.models.zoo import ZOO, build_model

__all__ = ["ZOO", "FlatModel", "Layout", "Part", "build_model"]


def __getattr__(name: str) -> Any:
    # Torch takes seconds to import, and the server needs only the layout.
    if name == "FlatModel":
        from rayfl.models.flat import FlatModel

        return FlatModel
    if name in ("ZOO", "build_model"):
        from rayfl.models import zoo

        return getattr(zoo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
