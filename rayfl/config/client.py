"""Config keys `local.*`, `participation.*` and `evaluate.*`: what clients do in a round."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Section
from rayfl.errors import shown


class LocalConfig(Section):
    """What a client does in one round."""

    steps: int | None = Field(None, ge=1, le=MOST, description="optimiser steps per round (10)")
    epochs: int | None = Field(None, ge=1, le=MOST, description="passes over the client's data, instead of steps")
    batch_size: int = Field(32, ge=1, le=MOST, description="samples per step")
    lr: float = Field(0.05, gt=0, description="learning rate")
    optimizer: str = Field("sgd", description="sgd, adam, adamw, or package.module:Class")
    optimizer_options: dict[str, Any] = Field(
        default_factory=dict, description="the optimiser's own options: adam and adamw have beta1, beta2 and epsilon"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    keep_momentum: bool = Field(
        False,
        description="keep each client's momentum from round to round, as the code of CAM's author does; the papers do"
        " not say, so by default it starts from rest",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="adds this times the weights to the gradient; adamw: to the step"
    )
    clip_norm: float | None = Field(None, gt=0, description="scale gradients down to at most this length; default: no")
    schedule: str = Field(
        "exponential",
        description="how the learning rate goes from round to round: constant, exponential (by lr_decay), cosine, step,"
        " or package.module:function",
    )
    schedule_options: dict[str, Any] = Field(
        default_factory=dict, description="the schedule's own options: cosine has over and least, step every and factor"
    )
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="exponential: the learning rate is multiplied by this every round"
    )
    augment: list[Literal["crop", "flip"]] = Field(
        default_factory=list,
        description="change the images of each batch at random: crop moves them by up to local.crop_padding pixels,"
        " black beyond the edge; flip mirrors every second one, left to right",
    )
    crop_padding: int = Field(4, ge=1, le=1000, description="the most pixels that crop moves an image by")

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
    def _go_together(self) -> "LocalConfig":
        if self.keep_momentum and not self.momentum:
            raise ValueError(
                "local.keep_momentum=True: local.momentum=0.0 leaves nothing to keep; set local.momentum, or leave"
                " local.keep_momentum out"
            )
        if self.keep_momentum and self.optimizer != "sgd":
            raise ValueError(
                f"local.keep_momentum=True goes with local.optimizer=sgd, not with {shown(self.optimizer)}: remove one"
            )
        if self.lr_decay != 1 and self.schedule != "exponential":
            raise ValueError(
                f"local.lr_decay={self.lr_decay} is not used by local.schedule={shown(self.schedule)}: remove it,"
                " or use local.schedule=exponential"
            )
        return self


class ParticipationConfig(Section):
    """Who takes part in a round."""

    fraction: float | None = Field(None, gt=0, le=1, description="share of the clients in each round's cohort (1.0)")
    count: int | None = Field(None, ge=1, le=MOST, description="size of the cohort, instead of fraction")
    kind: Literal["uniform", "by_size", "trace"] = Field(
        "uniform",
        description="how the cohort is drawn: uniform; by_size: with probabilities by training samples; trace: among"
        " those who are available, as the file participation.path says",
    )
    path: str | None = Field(
        None,
        description="of a trace: a CSV or Parquet file with the columns round and client, a row for each round in which"
        " a client is available; after its last round it begins again",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that a client of the cohort is lost during the round, and its update"
    )

    @model_validator(mode="after")
    def _fraction_or_count(self) -> "ParticipationConfig":
        if self.fraction is not None and self.count is not None:
            raise ValueError(
                f"participation.fraction={self.fraction} and participation.count={self.count} exclude each other:"
                " remove one"
            )
        return self

    @model_validator(mode="after")
    def _trace_has_a_path(self) -> "ParticipationConfig":
        if self.kind == "trace" and self.path is None:
            raise ValueError(
                "participation.path is missing: participation.kind=trace needs a file with the columns round and client"
            )
        if self.kind != "trace" and self.path is not None:
            raise ValueError(
                f"participation.path={shown(self.path)} is not used by participation.kind={self.kind}: remove it, or"
                " use participation.kind=trace"
            )
        return self


class EvaluateConfig(Section):
    """When the models are tested."""

    every: int = Field(1, ge=1, le=MOST, description="test all clients after every N rounds, and after the last")
