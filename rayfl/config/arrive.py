"""Config keys `arrive.*`: clients that are held back, and come in a later round or after training."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rayfl.config.section import MOST, Section
from rayfl.errors import shown

#: The most rounds of fine-tuning before a test of newcomers; each round trains all newcomers.
MOST_TUNED = 1000


class ArriveConfig(Section):
    """Who is a newcomer, when newcomers arrive, and how they are tested."""

    share: float | None = Field(None, gt=0, lt=1, description="share of the clients that are newcomers")
    count: int | None = Field(None, ge=1, le=MOST, description="how many clients are newcomers, instead of share")
    clients: list[Annotated[int, Field(ge=0, le=MOST)]] | None = Field(
        None, min_length=1, description="the numbers of the newcomers, instead of share"
    )
    round: int | Literal["after"] = Field(
        "after",
        description="the round from which on newcomers take part, 2 or later; after: they are only tested, after the"
        " last round",
    )
    tune: list[Annotated[int, Field(ge=0, le=MOST_TUNED)]] = Field(
        default_factory=lambda: [0, 1, 5],
        min_length=1,
        description="the numbers of rounds of fine-tuning, on their own data, after which newcomers are tested",
    )

    @field_validator("round")
    @classmethod
    def _a_round_with_others_before(cls, given: Any) -> Any:
        if isinstance(given, int) and not 2 <= given <= MOST:
            raise ValueError(
                f"arrive.round={shown(given)}: newcomers come from round 2 on, to models that others have trained; use"
                " 2 or more, or after"
            )
        return given

    @model_validator(mode="after")
    def _one_way_to_say_who(self) -> "ArriveConfig":
        given = {name: getattr(self, name) for name in ("share", "count", "clients")}
        named = [f"arrive.{name}={shown(value)}" for name, value in given.items() if value is not None]
        if not named:
            raise ValueError("arrive.share is missing: say who arrives later by arrive.share, .count or .clients")
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: keep one")
        for name, numbers in (("clients", self.clients), ("tune", self.tune)):
            if numbers is not None and len(set(numbers)) < len(numbers):
                raise ValueError(f"arrive.{name}={shown(numbers)} names one twice: remove it")
        return self
