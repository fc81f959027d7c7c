"""Config key `callbacks`: what is called after each round. A callback's options are described with the callback."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from rayfl.config.section import Section


class CallbackConfig(Section):
    """A callback by name, with its own options; a name alone stands for one without options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    name: str = Field(description="early_stopping, save_models, or package.module:Class")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @property
    def options(self) -> dict[str, Any]:
        """The callback's own options as given."""
        return dict(self.model_extra or {})


def as_list(given: Any) -> Any:
    """Let a single callback stand for a list of one."""
    if isinstance(given, str | Mapping):
        return [given]
    return list(given) if isinstance(given, tuple) else given
