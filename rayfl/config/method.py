"""Config keys `model.*` and `method.*`."""

from collections.abc import Collection
from typing import Any

from pydantic import ConfigDict, Field

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
    inherited: dict[str, Any] | None = Field(
        None, description="options of the method that an override replaced; used where this method has them too"
    )

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options as given."""
        return dict(self.model_extra or {})

    def options_among(self, known: Collection[str]) -> dict[str, Any]:
        """The options as given, and the `known` ones among the options of a method that an override replaced.

        So `rayfl run fedac.yaml method.name=fedavg` runs, and keeps the options that both methods have.
        """
        return {k: v for k, v in (self.inherited or {}).items() if k in known} | self.options
