"""Config keys `local.*`, `participation.*` and `evaluate.*`: what clients do in a round."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Section
from rayfl.errors import shown


class LocalConfig(Section):
    """What a client does in one round."""

    steps: int | None = Field(None, ge=1, le=MOST, description="optimiser steps per round (10)")
    epochs: int | None = Field(None, ge=1, le=MOST, description="passes over the client's data, instead of steps")
    batch_size: int = Field(32, ge=1, le=MOST)
    lr: float = Field(0.05, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    keep_momentum: bool = Field(
        False,
        description="keep each client's momentum from round to round, as the code of CAM's author does; the papers do"
        " not say, so by default it starts from rest",
    )
    weight_decay: float = Field(0.0, ge=0)
    lr_decay: float = Field(1.0, gt=0, le=1, description="the learning rate is multiplied by this every round")

    @model_validator(mode="before")
    @classmethod
    def _steps_or_epochs(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            if given.get("steps") is not None and given.get("epochs") is not None:
                raise ValueError(
                    f"local.steps={shown(given['steps'])} and local.epochs={shown(given['epochs'])} exclude each other:"
                    " remove one"
                )
            if given.get("steps") is None and given.get("epochs") is None:
                return {**given, "steps": 10}
        return given

    @model_validator(mode="after")
    def _momentum_to_keep(self) -> "LocalConfig":
        if self.keep_momentum and not self.momentum:
            raise ValueError(
                "local.keep_momentum=True: local.momentum=0.0 leaves nothing to keep; set local.momentum, or leave"
                " local.keep_momentum out"
            )
        return self


class ParticipationConfig(Section):
    """How many clients take part in a round."""

    fraction: float | None = Field(None, gt=0, le=1, description="share of the clients in each round's cohort (1.0)")
    count: int | None = Field(None, ge=1, le=MOST, description="size of the cohort, instead of fraction")

    @model_validator(mode="after")
    def _fraction_or_count(self) -> "ParticipationConfig":
        if self.fraction is not None and self.count is not None:
            raise ValueError(
                f"participation.fraction={self.fraction} and participation.count={self.count} exclude each other:"
                " remove one"
            )
        return self


class EvaluateConfig(Section):
    """When the models are tested."""

    every: int = Field(1, ge=1, le=MOST, description="test all clients every so many rounds, and after the last")
