"""Config keys `partition.*`: one class per kind, with the keys that this kind reads."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from rayfl.config.composed import ComposedPartition
from rayfl.config.label_parts import ALPHAS, ClassesKeys, ClusterClassesKeys, ClusterDirichletKeys, DirichletKeys
from rayfl.config.partition_base import MOST_COPIES, PartitionConfig, PlantedPartition
from rayfl.config.section import MOST, Positive
from rayfl.config.union import OWN, members, tag_of
from rayfl.errors import shown

__all__ = ["ALPHAS", "MOST_COPIES", "PARTITIONS", "AnyPartition", "PartitionConfig"]

Angle = Annotated[float, Field(ge=-360, le=360)]


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


class DirichletPartition(DirichletKeys, SizedPartition):
    """Each client has its own mix of labels."""

    kind: Literal["dirichlet"] = "dirichlet"


class ClassesPartition(ClassesKeys, SizedPartition):
    """Each client has samples of a few classes."""

    kind: Literal["classes"] = "classes"


class ClusteredPartition(PlantedPartition, SizedPartition):
    """Kinds that plant clusters of clients, which may get a range of sizes."""


class ClusterDirichletPartition(ClusterDirichletKeys, ClusteredPartition):
    """Clusters of clients with mixes of labels that are alike."""

    kind: Literal["cluster_dirichlet"] = "cluster_dirichlet"


class ClusterClassesPartition(ClusterClassesKeys, ClusteredPartition):
    """Clusters of clients that share a set of classes."""

    kind: Literal["cluster_classes"] = "cluster_classes"


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
        description="transforms by rotation: degrees counter-clockwise, one per cluster, instead of quarter turns; "
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
        """The column that names the owner of each sample."""
        return self.column

    @property
    def by_owner(self) -> bool:
        """Whether clients are the owners of samples."""
        return True


class FilePartition(PartitionConfig):
    """A partition that was saved before, with `rayfl partition -o partition.parquet`."""

    kind: Literal["file"] = "file"
    path: str = Field(description="file: the .parquet file that `rayfl partition -o` wrote")
    functions: list[str] = Field(
        default_factory=list,
        description="file: functions or classes of one's own that the file names, package.module:name; code that is not"
        " named here is not imported",
    )
    default_clients: ClassVar[int | None] = None

    @classmethod
    def _more_defaults(cls, filled: dict[str, Any]) -> dict[str, Any]:
        for key in ("clients", "test", "validation", "public"):
            if key in filled and not (key == "test" and filled[key] == cls.model_fields["test"].default):
                raise ValueError(
                    f"partition.{key}={shown(filled[key])} is not used by partition.kind=file: the file says it,"
                    " remove the key"
                )
        return filled


class OwnPartition(PartitionConfig):
    """A kind of a user's own, with options that its class describes and checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    kind: str = Field(description="package.module:Class", pattern=":")
    default_clients: ClassVar[int | None] = None
    #: Where the keys are, for messages.
    place: ClassVar[str] = "partition"

    @property
    def options(self) -> dict[str, Any]:
        """The kind's own options as given."""
        return dict(self.model_extra or {})


class OwnLabelsPartition(OwnPartition):
    """The same as `partition.labels` of a composed partition."""

    place: ClassVar[str] = "partition.labels"
    #: Sizes are asked for by partition.quantity, never here; classes derived from ByLabels look for this attribute.
    samples: ClassVar[None] = None


AnyPartition = Annotated[
    Annotated[TransformsPartition, Tag("kind=transforms")]
    | Annotated[IidPartition, Tag("kind=iid")]
    | Annotated[DirichletPartition, Tag("kind=dirichlet")]
    | Annotated[ClassesPartition, Tag("kind=classes")]
    | Annotated[ClusterDirichletPartition, Tag("kind=cluster_dirichlet")]
    | Annotated[ClusterClassesPartition, Tag("kind=cluster_classes")]
    | Annotated[NaturalPartition, Tag("kind=natural")]
    | Annotated[ComposedPartition, Tag("kind=composed")]
    | Annotated[FilePartition, Tag("kind=file")]
    | Annotated[OwnPartition, Tag("kind=package.module:Class")],
    Discriminator(tag_of("kind", "transforms", OWN + "Class", PartitionConfig)),
]

#: The section of each built-in kind.
PARTITIONS: dict[str, Any] = {name: section for name, section in members(AnyPartition).items() if ":" not in name}
