"""Options that methods share: add-ons on clustered methods, and fine-tuning. Their defaults are the papers'."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rayfl.config import MOST, Section

#: The most models that a server begins with: each is built before the first round.
MOST_CLUSTERS = 10_000

AddOnName = Literal["cam", "con", "cks", "con_cks"]


class CamOptions(Section):
    """Clustered additive modelling (CAM; thesis ch. 7)."""

    warmup: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="rounds before clusters are used [beta]; 30 for ifca, fesem and wecfl, others have none",
    )


class ConOptions(Section):
    """The contrastive term (thesis ch. 4)."""

    on: Literal["parameters", "representations"] = Field("representations", description="Eq. 4.3, or Eq. 4.4")
    temperature: float = Field(0.5, gt=0, description="[tau]")
    weight: float = Field(1.0, gt=0, description="[mu]")


class CksOptions(Section):
    """Cross-cluster knowledge sharing (thesis ch. 5): a pull to the mean over all clusters."""

    strength: float = Field(0.01, gt=0, description="[lambda_k]")


ADDONS: dict[str, type[Section]] = {"cam": CamOptions, "con": ConOptions, "cks": CksOptions}


class MethodOptions(Section):
    """What every method takes."""

    finetune: bool = Field(False, description="one more local round after the last, then test (thesis 7.4.4)")


class ClusteredOptions(MethodOptions):
    """What every clustered method takes."""

    addons: list[AddOnName] = Field(default_factory=list, description="any of cam, con, cks, con_cks")
    cam: CamOptions | None = Field(None, description="options of the add-on cam")
    con: ConOptions | None = Field(None, description="options of the add-ons con and con_cks")
    cks: CksOptions | None = Field(None, description="options of the add-ons cks and con_cks")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_addons(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("addons", []), list):
            return given
        named = given.get("addons", [])
        users = {"cam": ("cam",), "con": ("con", "con_cks"), "cks": ("cks", "con_cks")}
        filled = dict(given)
        for section, names in users.items():
            wanted = any(name in named for name in names)
            if given.get(section) is not None and not wanted:
                raise ValueError(f"method.{section} is not used: add {' or '.join(names)} to method.addons={named}")
            if wanted:
                filled.setdefault(section, {})
        return filled

    @model_validator(mode="after")
    def _addons_that_go_together(self) -> "ClusteredOptions":
        if len(set(self.addons)) < len(self.addons):
            raise ValueError(f"method.addons={self.addons} names one twice: remove it")
        if "con_cks" in self.addons and {"con", "cks"} & set(self.addons):
            raise ValueError(f"method.addons={self.addons}: con_cks is both con and cks already, name it alone")
        return self
