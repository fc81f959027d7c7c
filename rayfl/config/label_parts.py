"""Config keys for how labels are spread over clients: in kinds of partitions, and in `partition.labels`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from rayfl.config.section import MOST, Section
from rayfl.config.union import OWN, tag_of

#: Concentrations outside this range round to one client or class that gets all, or to equal shares.
ALPHAS = (1e-9, 1e9)


class DirichletKeys(Section):
    """Keys of Dirichlet draws."""

    alpha: float = Field(
        0.1, ge=ALPHAS[0], le=ALPHAS[1], description="dirichlet: concentration of each client's labels"
    )
    over: Literal["classes", "clients"] | None = Field(
        None,
        description="dirichlet: classes, a draw of shares of the classes for each client; clients, one of shares of "
        "the clients for each class. Default: classes where clients have sizes to fill, else clients",
    )


class ClassesKeys(Section):
    """Keys of clients with a few classes."""

    classes: int = Field(2, ge=1, le=MOST, description="classes: how many classes a client has")


class ClusterDirichletKeys(Section):
    """Keys of Dirichlet draws for clusters, and within them."""

    alpha_cluster: float = Field(0.1, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: between clusters")
    alpha_client: float = Field(10.0, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: within a cluster")


class ClusterClassesKeys(Section):
    """Keys of clusters with a few classes."""

    #: Where the keys are, for messages.
    place: ClassVar[str] = "partition"

    classes_cluster: int = Field(3, ge=1, le=MOST, description="cluster_classes: classes of a cluster")
    classes_client: int = Field(
        2, ge=1, le=MOST, description="cluster_classes: how many of its cluster's classes a client has"
    )

    @model_validator(mode="after")
    def _possible_classes(self) -> "ClusterClassesKeys":
        if self.classes_client > self.classes_cluster:
            raise ValueError(
                f"{self.place}.classes_client={self.classes_client} is more than"
                f" {self.place}.classes_cluster={self.classes_cluster}: a client's classes are its cluster's"
            )
        return self


class LabelsConfig(Section):
    """How labels are spread over clients, as a part of a composed partition."""

    kind: str = Field("iid", description="iid, dirichlet, classes, cluster_dirichlet, cluster_classes, or a class")

    @property
    def options(self) -> dict[str, Any]:
        """All keys but the kind."""
        return {key: value for key, value in self.model_dump(exclude_none=True).items() if key != "kind"}


class IidLabels(LabelsConfig):
    """Every client draws from all samples alike."""

    kind: Literal["iid"] = "iid"


class DirichletLabels(DirichletKeys, LabelsConfig):
    """Each client has its own mix of labels."""

    kind: Literal["dirichlet"] = "dirichlet"


class ClassesLabels(ClassesKeys, LabelsConfig):
    """Each client has samples of a few classes."""

    kind: Literal["classes"] = "classes"


class ClusterDirichletLabels(ClusterDirichletKeys, LabelsConfig):
    """Clusters of clients with mixes of labels that are alike."""

    kind: Literal["cluster_dirichlet"] = "cluster_dirichlet"


class ClusterClassesLabels(ClusterClassesKeys, LabelsConfig):
    """Clusters of clients that share a set of classes."""

    place: ClassVar[str] = "partition.labels"
    kind: Literal["cluster_classes"] = "cluster_classes"


class OwnLabels(LabelsConfig):
    """A subclass of rayfl.data.PartitionKind of a user's own, with options that it describes and checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    kind: str = Field(description="package.module:Class", pattern=":")


AnyLabels = Annotated[
    Annotated[IidLabels, Tag("kind=iid")]
    | Annotated[DirichletLabels, Tag("kind=dirichlet")]
    | Annotated[ClassesLabels, Tag("kind=classes")]
    | Annotated[ClusterDirichletLabels, Tag("kind=cluster_dirichlet")]
    | Annotated[ClusterClassesLabels, Tag("kind=cluster_classes")]
    | Annotated[OwnLabels, Tag("kind=package.module:Class")],
    Discriminator(tag_of("kind", "iid", OWN + "Class", LabelsConfig)),
]
