"""Config keys `partition.*` that kinds of partitions share."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeGuard

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Positive, Section

#: The most planted clusters that each hold all samples, or have an angle of their own.
MOST_COPIES = 1000


class PartitionConfig(Section):
    """Who gets which samples: the keys of every kind."""

    kind: str = Field("transforms", description="how samples are dealt, or package.module:Class")
    clients: int | None = Field(
        None, ge=1, le=MOST, description="number of clients (20); natural: take only this many of the owners"
    )
    test: float | Literal["official"] = Field(
        0.2,
        description="share of each client's samples kept for testing, or official: test samples come from the "
        "source's own test split, with the client's label distribution",
    )
    validation: float | Literal["official"] | None = Field(
        None,
        description="share of each client's training samples kept for validation, or official: validation samples come "
        "from the source's own validation split (val of npz, image folders, parquet); default: official where there is "
        "such a split, else 0. With a share, or 0, that split is dealt for training",
    )
    public: float | Literal["none", "test"] | None = Field(
        None,
        description="samples that only the server sees, without labels, and no client has. test: the source's own test "
        "split, as FedTSDP has it; or a share of the samples, drawn by the seed; or none. Default: none, but "
        "for methods that need them (fedtsdp) test, or 0.1 where there is no such split or partition.test=official",
    )

    seed: int | None = Field(
        None,
        ge=0,
        le=2**63 - 1,
        description="of who gets which samples, and of data.limit; default: the run's seed. Set it, and seed changes "
        "only the training",
    )

    #: How many clients there are if the config does not say; None: as many as the data have.
    default_clients: ClassVar[int | None] = 20

    @property
    def owner_column(self) -> str | None:
        """The column that names the owner of each sample, for kinds that deal by owner."""
        return None

    @property
    def by_owner(self) -> bool:
        """Whether clients are the owners of samples."""
        return False

    @property
    def planted(self) -> int | None:
        """How many clusters are planted, if any are."""
        return None

    def lasting(self, rounds: int) -> "PartitionConfig":
        """Return a partition in which recurring changes go on for this many rounds."""
        return self

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        filled = {k: v for k, v in given.items() if v is not None}
        if cls.default_clients is not None:
            sizes = filled.get("cluster_sizes") if "cluster_sizes" in cls.model_fields else None
            filled.setdefault("clients", sum(sizes) if are_sizes(sizes) else cls.default_clients)
        return cls._more_defaults(filled)

    @classmethod
    def _more_defaults(cls, filled: dict[str, Any]) -> dict[str, Any]:
        """Fill in what depends on other keys of the kind."""
        return filled

    @model_validator(mode="after")
    def _possible_splits(self) -> "PartitionConfig":
        if isinstance(self.test, float) and not 0 < self.test < 1:
            raise ValueError(f"partition.test={self.test} must lie between 0 and 1, or be 'official'")
        if isinstance(self.validation, float) and not 0 <= self.validation < 1:
            raise ValueError(f"partition.validation={self.validation} must be at least 0 and below 1, or be 'official'")
        if isinstance(self.public, float) and not 0 < self.public < 1:
            raise ValueError(f"partition.public={self.public} must lie between 0 and 1, or be 'none' or 'test'")
        if self.public == "test" and self.test == "official":
            raise ValueError(
                "partition.public=test and partition.test=official want the same samples: use a share for one of them,"
                " such as partition.test=0.2"
            )
        return self


class PlantedPartition(PartitionConfig):
    """Kinds that plant clusters of clients."""

    clusters: int = Field(5, ge=1, le=MOST, description="number of planted clusters")
    cluster_sizes: list[Positive] | None = Field(
        None, min_length=1, description="clients per cluster, instead of clusters of equal size"
    )

    @property
    def planted(self) -> int | None:
        """How many clusters are planted."""
        return self.clusters

    @classmethod
    def _more_defaults(cls, filled: dict[str, Any]) -> dict[str, Any]:
        sizes = filled.get("cluster_sizes")
        if are_sizes(sizes):
            filled.setdefault("clusters", len(sizes))
        return filled

    @model_validator(mode="after")
    def _possible_clusters(self) -> "PlantedPartition":
        if self.clients is not None and self.clusters > self.clients:
            raise ValueError(
                f"partition.clusters={self.clusters} is more than partition.clients={self.clients}:"
                " some clusters would have nobody"
            )
        if self.cluster_sizes is not None:
            if sum(self.cluster_sizes) != self.clients:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} must be positive and add up to"
                    f" partition.clients={self.clients} (they add up to {sum(self.cluster_sizes)})"
                )
            if len(self.cluster_sizes) != self.clusters:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} names {len(self.cluster_sizes)} clusters,"
                    f" partition.clusters={self.clusters}: leave one of them out"
                )
        return self


def are_sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of valid sizes, so that its length and sum can be used."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, int) and 1 <= v <= MOST for v in value)
