"""Config keys `model.*` and `method.*`."""

from collections.abc import Collection
from typing import Any

from pydantic import ConfigDict, Field, PrivateAttr

from rayfl.config.section import Section


class ModelConfig(Section):
    """The network."""

    name: str = Field("digits_cnn", description="a name of the zoo, or package.module:Class")
    head: str | None = Field(
        None,
        description="module that is the head (default: the last fully connected layer); the rest is backbone",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the network's class")


class MethodConfig(Section):
    """The method's name, and its own options, which the method itself describes and checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    name: str = Field("fedac", description="see `rayfl methods`, or package.module:Class")
    _of_another: frozenset[str] = PrivateAttr(frozenset())

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options as given."""
        return dict(self.model_extra or {})

    def options_among(self, known: Collection[str]) -> dict[str, Any]:
        """The options as given, without those that a file meant for the method that an override replaced.

        So `rayfl run fedac.yaml method.name=fedavg` runs, and still keeps what both methods know.
        """
        return {k: v for k, v in self.options.items() if k in known or k not in self._of_another}
