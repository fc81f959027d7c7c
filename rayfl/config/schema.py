"""The whole config: one typed tree of sections. A method's own options are described with the method."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rayfl.config.arrive import ArriveConfig
from rayfl.config.callbacks import CallbackConfig, as_list
from rayfl.config.client import EvaluateConfig, LocalConfig, ParticipationConfig
from rayfl.config.data import AnyData, DigitsData
from rayfl.config.method import MethodConfig, ModelConfig
from rayfl.config.partition import AnyPartition, TransformsPartition
from rayfl.config.placement import OutputConfig, RayConfig, StateConfig, Training
from rayfl.config.section import MOST, Section, tree_without_secrets
from rayfl.errors import shown
from rayfl.input_tree import dump_yaml


class Config(Section):
    """Everything a run depends on."""

    name: str | None = Field(None, description="name of the run's folder; default: source-method-seed and the time")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="of all random numbers")  # the tables hold it as int64
    rounds: int = Field(
        60, ge=1, le=MOST, description="number of rounds; in each, clients train and the server aggregates"
    )
    task: str = Field(
        "classification", description="what clients learn: classification, regression, or package.module:Class"
    )
    data: AnyData = DigitsData()
    partition: AnyPartition = Field(default_factory=lambda: TransformsPartition.model_validate({}))
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    local: LocalConfig = Field(default_factory=lambda: LocalConfig.model_validate({}))
    participation: ParticipationConfig = ParticipationConfig()
    arrive: ArriveConfig | None = Field(
        None, description="clients that come later; default: all are there from the start"
    )
    evaluate: EvaluateConfig = EvaluateConfig()
    callbacks: list[CallbackConfig] = Field(
        default_factory=list,
        description="called after each round, may stop the run: early_stopping, save_models, package.module:Class",
    )
    ray: RayConfig = RayConfig()
    state: StateConfig = StateConfig()
    output: OutputConfig = OutputConfig()
    federation: Literal["ray", "serial"] = Field("ray", description="ray: client actors; serial: all in this process")
    training: Training = Field(
        "auto",
        description="one client after the other, or several at once; auto: by network, batch size, device and CPU",
    )
    cpu_capability: str | None = Field(
        None,
        max_length=64,
        description="the CPU instructions that a run began with, such as AVX2; filled in when it starts",
    )

    @field_validator("callbacks", mode="before")
    @classmethod
    def _one_or_many(cls, given: Any) -> Any:
        return as_list(given)

    @model_validator(mode="after")
    def _cohort_fits(self) -> "Config":
        count, clients = self.participation.count, self.partition.clients
        if count is not None and clients is not None and count > clients:
            raise ValueError(
                f"participation.count={count} is more than partition.clients={clients}: nobody takes part twice"
            )
        if self.arrive is not None and self.arrive.round != "after" and self.arrive.round > self.rounds:
            raise ValueError(
                f"arrive.round={self.arrive.round} is after the last round, rounds={self.rounds}: use an earlier one,"
                " or arrive.round=after"
            )
        natural = self.partition.by_owner and self.partition.owner_column is None
        if natural and not self.data.may_name_clients:
            key, part = "column", "kind=natural"
            if self.partition.kind == "composed":
                key, part = "natural.columns", "natural"
            raise ValueError(f"partition.{key} is missing: partition.{part} needs the column with the owner")
        if self.name is not None and not _is_folder_name(self.name):
            raise ValueError(
                f"name={shown(self.name)} cannot be a folder: use letters, digits, '-', '_' and '.', at most"
                f" {_MOST_NAME} characters"
            )
        return self

    @property
    def partition_seed(self) -> int:
        """The seed of who gets which samples: partition.seed, else that of the run."""
        return self.seed if self.partition.seed is None else self.partition.seed

    def cohort_size(self, clients: int) -> int:
        """How many of `clients` take part in a round: at least one."""
        if self.participation.count is not None:
            return min(self.participation.count, clients)
        return max(1, round((self.participation.fraction or 1.0) * clients))

    def to_tree(self) -> dict[str, Any]:
        """The resolved config as plain values, as it is saved with the run: URIs without their secrets."""
        return tree_without_secrets(self.model_dump(mode="json", exclude_none=True))

    def to_yaml(self) -> str:
        """The resolved config, as it is saved with the run and read back."""
        return dump_yaml(self.to_tree())


_MOST_NAME = 200  # bytes: file systems allow 255, and files next to the folder have longer names


def _is_folder_name(name: str) -> bool:
    return bool(name.strip(". ")) and not set("/\\\0\n") & set(name) and len(name.encode()) <= _MOST_NAME
