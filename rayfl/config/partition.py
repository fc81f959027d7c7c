"""Config keys `partition.*`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Positive, Section
from rayfl.errors import shown

#: The most planted clusters that each hold all samples, or have an angle of their own.
MOST_COPIES = 1000
#: Concentrations outside this range round to one client or class that gets all, or to equal shares.
ALPHAS = (1e-9, 1e9)
Angle = Annotated[float, Field(ge=-360, le=360)]
PartitionKind = Literal["iid", "dirichlet", "classes", "cluster_dirichlet", "cluster_classes", "transforms", "natural"]

#: Which keys each kind of partition reads, with their defaults; all kinds read clients, samples, test, validation
#: and public.
PARTITION_KEYS: dict[str, dict[str, Any]] = {
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "classes": {"classes": 2},
    "cluster_dirichlet": {"clusters": 5, "alpha_cluster": 0.1, "alpha_client": 10.0},
    "cluster_classes": {"clusters": 5, "classes_cluster": 3, "classes_client": 2},
    "transforms": {"transform": "rotation", "clusters": None, "angles": None, "whole_per_cluster": None},
    "natural": {"column": None},
}
_CLUSTERED = ("cluster_dirichlet", "cluster_classes", "transforms")
_TRANSFORM_CLUSTERS = {"rotation": 4, "inversion": 2, "label_permutation": 4}


class PartitionConfig(Section):
    """Who gets which samples."""

    kind: PartitionKind = "transforms"
    clients: int | None = Field(None, ge=1, le=MOST, description="number of clients (20); natural: take only so many")
    clusters: int | None = Field(None, ge=1, le=MOST, description="number of planted clusters")
    cluster_sizes: list[Positive] | None = Field(
        None, min_length=1, description="clients per cluster, instead of clusters of equal size"
    )
    samples: list[Positive] | None = Field(
        None, description="[min, max] samples per client, training and test together"
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
    alpha: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="dirichlet: concentration of each client's labels"
    )
    alpha_cluster: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: between clusters"
    )
    alpha_client: float | None = Field(
        None, ge=ALPHAS[0], le=ALPHAS[1], description="cluster_dirichlet: within a cluster"
    )
    classes: int | None = Field(None, ge=1, le=MOST, description="classes: how many classes a client has")
    classes_cluster: int | None = Field(None, ge=1, le=MOST, description="cluster_classes: classes of a cluster")
    classes_client: int | None = Field(
        None, ge=1, le=MOST, description="cluster_classes: of which a client has so many"
    )
    transform: Literal["rotation", "inversion", "label_permutation"] | None = Field(
        None, description="transforms: what sets the clusters apart"
    )
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
    column: str | None = Field(None, description="natural: the column that says whose sample it is")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        given = {k: v for k, v in given.items() if v is not None}
        kind = given.get("kind", "transforms")
        if not isinstance(kind, str) or kind not in PARTITION_KEYS:
            return given
        used = PARTITION_KEYS[kind]
        clustered = kind in _CLUSTERED
        for key in {k for keys in PARTITION_KEYS.values() for k in keys} | {"cluster_sizes"}:
            if key in given and key not in used and not (key == "cluster_sizes" and clustered):
                kinds = [k for k, keys in PARTITION_KEYS.items() if key in keys] or list(_CLUSTERED)
                raise ValueError(
                    f"partition.{key}={shown(given[key])} is not used by partition.kind={kind}"
                    f" (only by {', '.join(kinds)}): remove it, or change partition.kind"
                )
        filled = {k: v for k, v in used.items() if v is not None} | given
        if kind != "natural":
            sizes = filled.get("cluster_sizes")
            filled.setdefault("clients", sum(sizes) if _is_ints(sizes) else 20)
        if clustered and _is_ints(given.get("cluster_sizes")) and "clusters" not in given:
            filled["clusters"] = len(given["cluster_sizes"])
        if kind == "transforms" and isinstance(filled["transform"], str):
            angles = filled.get("angles")
            several = len(angles) if isinstance(angles, list) else 0
            filled.setdefault("clusters", several or _TRANSFORM_CLUSTERS.get(filled["transform"]))
        return filled

    @model_validator(mode="after")
    def _possible(self) -> "PartitionConfig":
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
        if self.samples is not None and (len(self.samples) != 2 or not 2 <= self.samples[0] <= self.samples[1]):
            raise ValueError(
                f"partition.samples={self.samples} must be [min, max] with 2 <= min <= max (one to train, one to test)"
            )
        if self.kind == "natural" and self.column is None:
            raise ValueError("partition.column is missing: partition.kind=natural needs the column with the owner")
        if self.clusters is not None and self.clients is not None and self.clusters > self.clients:
            raise ValueError(
                f"partition.clusters={self.clusters} is more than partition.clients={self.clients}:"
                " some clusters would have nobody"
            )
        if self.cluster_sizes is not None:
            if min(self.cluster_sizes, default=0) < 1 or sum(self.cluster_sizes) != self.clients:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} must be positive and add up to"
                    f" partition.clients={self.clients} (they add up to {sum(self.cluster_sizes)})"
                )
            if len(self.cluster_sizes) != self.clusters:
                raise ValueError(
                    f"partition.cluster_sizes={self.cluster_sizes} names {len(self.cluster_sizes)} clusters,"
                    f" partition.clusters={self.clusters}: leave one of them out"
                )
        self._check_angles()
        if self.whole_per_cluster and self.clusters is not None and self.clusters > MOST_COPIES:
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.whole_per_cluster: use at most"
                f" {MOST_COPIES}"
            )
        most = {"rotation": 4, "inversion": 2}.get(self.transform or "") if self.angles is None else None
        if most and self.clusters is not None and self.clusters > most:
            more = "partition.angles names more" if self.transform == "rotation" else "label_permutation has more"
            raise ValueError(
                f"partition.clusters={self.clusters} is too many for partition.transform={self.transform}:"
                f" it has {most} ({more})"
            )
        if self.classes_cluster and self.classes_client and self.classes_client > self.classes_cluster:
            raise ValueError(
                f"partition.classes_client={self.classes_client} is more than"
                f" partition.classes_cluster={self.classes_cluster}: a client's classes are its cluster's"
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


def _is_ints(value: Any) -> bool:
    """Whether this is a list of sizes, so that its length and sum mean something."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, int) and 1 <= v <= MOST for v in value)
