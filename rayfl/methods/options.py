"""Options that methods share: add-ons of clustered methods, and fine-tuning. The defaults are those of the papers."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rayfl.config import MOST, Section

#: The maximum of models that a server starts with: each is built before the first round.
MOST_CLUSTERS = 10_000

AddOnName = Literal["cam", "con", "cks", "con_cks"]
#: What is compared of clients' models: the last fully connected layer, all such layers at the end, or everything.
ComparedPart = Literal["head", "dense", "all"]


class CamOptions(Section):
    """Clustered additive modelling (CAM; thesis ch. 7)."""

    warmup: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="rounds before clusters are used [beta]; ifca, fesem and wecfl: 30 as in the papers, of their 100 "
        "rounds, and 30 % of the rounds in shorter runs; other methods have none",
    )
    damped: bool = Field(
        False,
        description="ifca, oneshot_ifca: a cluster's model moves only by its share of the cohort's samples (CAM Eq. "
        "6); false: to the plain weighted mean (thesis Eq. 7.6, and the author's code)",
    )
    residual: bool = Field(
        True,
        description="train each model with the other one's logits added; false: FedAvg and the method are trained "
        'apart and their logits added in tests only: "FedAvg + IFCA" and "FedAvg + FeSEM", thesis Table 7.5 (Eq. 7.36)',
    )


class ConOptions(Section):
    """The contrastive term (thesis ch. 4)."""

    on: Literal["parameters", "representations"] = Field(
        "parameters", description="Eq. 4.3, which the thesis recommends (4.4.2), or Eq. 4.4"
    )
    part: ComparedPart = Field(
        "dense",
        description="parameters: which of them are compared; the thesis does not say, the author's code has dense",
    )
    temperature: float = Field(1.0, gt=0, description="[tau]; thesis 4.4.1 tries 0.1, 1 and 10; the middle one")
    weight: float = Field(0.5, gt=0, description="[mu]; thesis 4.4.1 tries 0.1, 0.5, 2 and 5; a middle one")


class CksOptions(Section):
    """Cross-cluster knowledge sharing (thesis ch. 5): a pull to the mean over all clusters."""

    strength: float = Field(
        0.01, gt=0, description="[lambda_k]; thesis 5.4.1 tries 1, 0.1, 0.01 and 0.001; a middle one"
    )


#: Values of `con` that are allowed together with `con_cks`: its defaults, or what con_cks does.
_CON_OF_CON_CKS = [("parameters", "dense"), ("parameters", "head")]

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
        if "con_cks" in self.addons and self.con is not None and (self.con.on, self.con.part) not in _CON_OF_CON_CKS:
            raise ValueError(
                f"method.con.on={self.con.on}, method.con.part={self.con.part}: con_cks compares the parameters of the"
                " head (thesis Eq. 6.1); leave both out, or use the add-ons con and cks"
            )
        if "cam" in self.addons and {"cks", "con_cks"} & set(self.addons):
            raise ValueError(
                f"method.addons={self.addons}: cks pulls the clusters' models to one model for all clients, and with"
                " cam they only correct such a model: use one of the two"
            )
        return self
