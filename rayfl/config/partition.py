"""Config keys `partition.*`: one class per kind, with the keys that this kind reads."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from rayfl.config.section import MOST, Positive, Section
from rayfl.config.union import OWN, members, tag_of
from rayfl.errors import shown

#: The most planted clusters that each hold all samples, or have an angle of their own.
MOST_COPIES = 1000
#: Concentrations outside this range round to one client or class that gets all, or to equal shares.
ALPHAS = (1e-9, 1e9)
Angle = Annotated[float, Field(ge=-360, le=360)]


class PartitionConfig(Section):
    """Who gets which samples: the keys of every kind."""

    kind: str = Field("transforms", description="how samples are dealt, or package.module:Class")
    clients: int | None = Field(None, ge=1, le=MOST, description="number of clients (20); natural: take only so many")
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

    #: How many clients there are if nobody says; None: as many as the data have.
    default_clients: ClassVar[int | None] = 20

    @property
    def owner_column(self) -> str | None:
        """The column that says whose sample it is, for kinds that deal by owner."""
        return None

    @property
    def planted(self) -> int | None:
        """How many clusters are planted, if any are."""
        return None

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        filled = {k: v for k, v in given.items() if v is not None}
        if cls.default_clients is not None:
            sizes = filled.get("cluster_sizes") if "cluster_sizes" in cls.model_fields else None
            filled.setdefault("clients", sum(sizes) if _are_sizes(sizes) else cls.default_clients)
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


class SizedPartition(PartitionConfig):
    """Kinds whose clients may get a range of sizes."""

    samples: list[Positive] | None = Field(
        None, description="[min, max] samples per client, training and test together"
    )

    @model_validator(mode="after")
    def _possible_range(self) -> "SizedPartition":
        if self.samples is not None and (len(self.samples) != 2 or not 2 <= self.samples[0] <= self.samples[1]):
            raise ValueError(
                f"partition.samples={self.samples} must be [min, max] with 2 <= min <= max (one to train, one to test)"
            )
        return self


class IidPartition(SizedPartition):
    """Every client draws from all samples alike."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(SizedPartition):
    """Each client has its own mix of labels."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        0.1, ge=ALPHAS[0], le=ALPHAS[1], description="dirichlet: concentration of each client's labels"
    )


class ClassesPartition(SizedPartition):
    """Each client has samples of a few classes."""

    kind: Literal["classes"] = "classes"
    classes: int = Field(2, ge=1, le=MOST, description="classes: how many classes a client has")


class ClusteredPartition(SizedPartition):
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
        if _are_sizes(sizes):
            filled.setdefault("clusters", len(sizes))
        return filled

    @model_validator(mode="after")
    def _possible_clusters(self) -> "ClusteredPartition":
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


class ClusterDirichletPartition(ClusteredPartition):
    """Clusters of clients with mixes of labels that are alike."""

    kind: Literal["cluster_dirichlet"] = "cluster_dirichlet"
    alpha_cluster: float = Field(0.1, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: between clusters")
    alpha_client: float = Field(10.0, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: within a cluster")


class ClusterClassesPartition(ClusteredPartition):
    """Clusters of clients that share a set of classes."""

    kind: Literal["cluster_classes"] = "cluster_classes"
    classes_cluster: int = Field(3, ge=1, le=MOST, description="cluster_classes: classes of a cluster")
    classes_client: int = Field(2, ge=1, le=MOST, description="cluster_classes: of which a client has so many")

    @model_validator(mode="after")
    def _possible_classes(self) -> "ClusterClassesPartition":
        if self.classes_client > self.classes_cluster:
            raise ValueError(
                f"partition.classes_client={self.classes_client} is more than"
                f" partition.classes_cluster={self.classes_cluster}: a client's classes are its cluster's"
            )
        return self


class TransformsPartition(ClusteredPartition):
    """Clusters of clients that see their samples turned, inverted, or with other labels."""

    kind: Literal["transforms"] = "transforms"
    transform: Literal["rotation", "inversion", "label_permutation"] = Field(
        "rotation", description="transforms: what sets the clusters apart"
    )
    clusters: int = Field(4, ge=1, le=MOST, description="number of planted clusters")
    angles: list[Angle] | None = Field(
        None,
        min_length=1,
        max_length=MOST_COPIES,
        description="transforms by rotation: degrees against the clock, one per cluster, instead of quarter turns; "
        "[0, 180] is SR-FCA's CIFAR-10. Other than quarter turns are interpolated, black beyond the edge",
    )
    whole_per_cluster: bool | None = Field(
        None,
        description="transforms: each cluster is dealt all samples, as in SR-FCA's CIFAR-10 (false); a sample is then "
        "held once per cluster, and is training, validation or test data for all of them alike",
    )

    @classmethod
    def _more_defaults(cls, filled: dict[str, Any]) -> dict[str, Any]:
        filled = super()._more_defaults(filled)
        angles = filled.get("angles")
        if isinstance(angles, list) and angles:
            filled.setdefault("clusters", len(angles))
        elif filled.get("transform") == "inversion":
            filled.setdefault("clusters", 2)
        return filled

    @model_validator(mode="after")
    def _possible_transforms(self) -> "TransformsPartition":
        self._check_angles()
        if self.whole_per_cluster and self.clusters > MOST_COPIES:
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.whole_per_cluster: use at most"
                f" {MOST_COPIES}"
            )
        most = {"rotation": 4, "inversion": 2}.get(self.transform) if self.angles is None else None
        if most and self.clusters > most:
            more = "partition.angles names more" if self.transform == "rotation" else "label_permutation has more"
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.transform={self.transform}:"
                f" it has {most} ({more})"
            )
        return self

    def _check_angles(self) -> None:
        if self.angles is None:
            return
        if self.transform != "rotation":
            raise ValueError(
                f"partition.angles={shown(self.angles)} is not used by partition.transform={self.transform}: remove it,"
                " or use partition.transform=rotation"
            )
        if len(self.angles) != self.clusters:
            raise ValueError(
                f"partition.angles={shown(self.angles)} has {len(self.angles)} angles for"
                f" partition.clusters={self.clusters}: give one angle per cluster, or leave partition.clusters out"
            )
        if len({round(angle, 6) % 360 for angle in self.angles}) < len(self.angles):
            raise ValueError(
                f"partition.angles={shown(self.angles)} names one angle twice: these clusters would be one, remove it"
            )


class NaturalPartition(SizedPartition):
    """One client per owner of samples."""

    kind: Literal["natural"] = "natural"
    column: str | None = Field(
        None,
        description="natural: the column that says whose sample it is; left out where the data name the clients"
        " themselves (data.client, or data from Python)",
    )
    default_clients: ClassVar[int | None] = None

    @property
    def owner_column(self) -> str | None:
        """The column that says whose sample it is."""
        return self.column


class OwnPartition(PartitionConfig):
    """A kind of a user's own, with options that its class describes and checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    kind: str = Field(description="package.module:Class", pattern=":")
    default_clients: ClassVar[int | None] = None

    @property
    def options(self) -> dict[str, Any]:
        """The kind's own options as given."""
        return dict(self.model_extra or {})


AnyPartition = Annotated[
    Annotated[TransformsPartition, Tag("kind=transforms")]
    | Annotated[IidPartition, Tag("kind=iid")]
    | Annotated[DirichletPartition, Tag("kind=dirichlet")]
    | Annotated[ClassesPartition, Tag("kind=classes")]
    | Annotated[ClusterDirichletPartition, Tag("kind=cluster_dirichlet")]
    | Annotated[ClusterClassesPartition, Tag("kind=cluster_classes")]
    | Annotated[NaturalPartition, Tag("kind=natural")]
    | Annotated[OwnPartition, Tag("kind=package.module:Class")],
    Discriminator(tag_of("kind", "transforms", OWN + "Class", PartitionConfig)),
]

#: The section of each built-in kind.
PARTITIONS: dict[str, Any] = {name: section for name, section in members(AnyPartition).items() if ":" not in name}


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of sizes, so that its length and sum mean something."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, int) and 1 <= v <= MOST for v in value)
