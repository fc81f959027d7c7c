"""Config keys of `partition.kind: composed`: parts that say how clients differ, and that combine."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from rayfl.config.feature_parts import MOST_VALUES, AnyConcept, AnyFeature, PlacedPart
from rayfl.config.label_parts import AnyLabels
from rayfl.config.partition_base import PlantedPartition, are_sizes
from rayfl.config.section import MOST, Positive, Section
from rayfl.config.union import OWN, tag_of
from rayfl.errors import shown


class QuantityConfig(Section):
    """How many samples clients have, training and test together."""

    kind: str = Field(description="range, lognormal, power_law, sizes, or a class")


class RangeQuantity(QuantityConfig):
    """A size drawn from a range for each client."""

    kind: Literal["range"] = "range"
    min: int = Field(ge=2, le=MOST, description="the fewest samples of a client (one to train, one to test)")
    max: int = Field(ge=2, le=MOST, description="the most samples of a client")

    @model_validator(mode="after")
    def _possible_range(self) -> "RangeQuantity":
        if self.min > self.max:
            raise ValueError(f"partition.quantity.min={self.min} is more than partition.quantity.max={self.max}")
        return self


class DrawnQuantity(QuantityConfig):
    """Sizes by a law, which add up to all samples, or to `mean` for each client."""

    mean: float | None = Field(None, ge=2, le=MOST, description="mean samples per client; default: all are dealt")
    least: int = Field(2, ge=2, le=MOST, description="the fewest samples of a client")


class LognormalQuantity(DrawnQuantity):
    """Sizes whose logarithms are normal."""

    kind: Literal["lognormal"] = "lognormal"
    sigma: float = Field(1.0, ge=0, le=20, description="lognormal: deviation of the logarithms; 0 is equal sizes")


class PowerLawQuantity(DrawnQuantity):
    """Sizes that fall with the rank of the client."""

    kind: Literal["power_law"] = "power_law"
    exponent: float = Field(
        1.0,
        ge=0,
        le=20,
        description="power_law: the client of rank k, in drawn order, gets in proportion to k^-exponent",
    )


class SizesQuantity(QuantityConfig):
    """Given sizes."""

    kind: Literal["sizes"] = "sizes"
    sizes: list[Positive] = Field(min_length=1, description="sizes: samples of each client, in their order")


class OwnQuantity(QuantityConfig):
    """A subclass of rayfl.data.partition.Quantity of a user's own; keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    kind: str = Field(description="package.module:Class", pattern=":")


AnyQuantity = Annotated[
    Annotated[RangeQuantity, Tag("kind=range")]
    | Annotated[LognormalQuantity, Tag("kind=lognormal")]
    | Annotated[PowerLawQuantity, Tag("kind=power_law")]
    | Annotated[SizesQuantity, Tag("kind=sizes")]
    | Annotated[OwnQuantity, Tag("kind=package.module:Class")],
    Discriminator(tag_of("kind", "", OWN + "Class", QuantityConfig)),
]


class NaturalPart(Section):
    """One client per owner of samples."""

    columns: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)] = Field(
        default_factory=list,
        max_length=16,
        description="the column that says whose sample it is, or several that say it together; left out where the data"
        " name the clients themselves",
    )


class DriftEvent(Section):
    """Clients that change cluster: suddenly, each at its own round, or there and back."""

    round: int | None = Field(None, ge=1, le=MOST, description="from this round on; default: every")
    until: int | None = Field(
        None, ge=1, le=MOST, description="gradual: each client changes in a round drawn from `round` to this one"
    )
    every: int | None = Field(
        None, ge=1, le=MOST, description="recurring: there, and back after this many rounds, and again"
    )
    times: int | None = Field(
        None, ge=1, le=10_000, description="recurring: how many changes in all; default: until the run ends"
    )
    share: float = Field(1.0, gt=0, le=1, description="share of the clients that change, drawn")
    clusters: list[Annotated[int, Field(ge=0, lt=MOST)]] | None = Field(
        None, min_length=1, description="whose clients change: those of these clusters before the first round (all)"
    )
    to: Literal["next", "random"] | list[Annotated[int, Field(ge=0, lt=MOST)]] = Field(
        "next", description="the next cluster, another one drawn for each client, or a list: where each cluster goes"
    )

    @model_validator(mode="after")
    def _one_course(self) -> "DriftEvent":
        first = self.round or self.every
        if first is None:
            raise ValueError("partition.drift: an event has no round: say round, or every for one that recurs")
        if self.until is not None and (self.every is not None or self.until < first):
            raise ValueError(
                f"partition.drift: until={self.until} must come after round={first}, and does not go with every: a"
                " change is gradual or it recurs"
            )
        return self

    @property
    def turns(self) -> int:
        """How many changes a recurring event has; without `times`, the number of changes that fingerprints cover."""
        return 100 if self.times is None else self.times

    def lasting(self, rounds: int) -> "DriftEvent":
        """Return an event that lasts for at least this many rounds if it recurs without an end."""
        if self.every is None or self.times is not None:
            return self
        turns = 1 + (rounds - (self.round or self.every)) // self.every
        return self.model_copy(update={"times": turns}) if turns > self.turns else self


class ComposedPartition(PlantedPartition):
    """Parts that say how clients differ, and that combine: labels, quantity, features, concept, natural, drift."""

    kind: Literal["composed"] = "composed"
    clusters: int = Field(1, ge=1, le=MOST, description="number of planted clusters; composed: 1 plants none")
    labels: AnyLabels | None = Field(None, description="composed: how labels are spread over clients (iid)")
    quantity: AnyQuantity | None = Field(
        None, description="composed: how many samples clients have; default: all are dealt, as the labels say"
    )
    features: list[AnyFeature] = Field(
        default_factory=list, max_length=MOST_VALUES, description="composed: what is done to inputs, in this order"
    )
    concept: list[AnyConcept] = Field(
        default_factory=list, max_length=MOST_VALUES, description="composed: what is done to labels, in this order"
    )
    natural: NaturalPart | None = Field(
        None, description="composed: one client per owner of samples, instead of labels"
    )
    drift: list[DriftEvent] = Field(
        default_factory=list, max_length=MOST_VALUES, description="composed: clients that change cluster, and when"
    )
    default_clients: ClassVar[int | None] = None

    @property
    def planted(self) -> int | None:
        """How many clusters are planted, if any are."""
        return self.clusters if self.clusters > 1 else None

    @property
    def owner_column(self) -> str | None:
        """The columns that name the owner of each sample."""
        return "+".join(self.natural.columns) or None if self.natural is not None else None

    @property
    def by_owner(self) -> bool:
        """Whether clients are the owners of samples."""
        return self.natural is not None

    @property
    def placed(self) -> Sequence[tuple[str, PlacedPart]]:
        """The parts that set clusters or clients apart, with the names of their keys."""
        features = [(f"partition.features.{at}", part) for at, part in enumerate(self.features)]
        return [*features, *[(f"partition.concept.{at}", part) for at, part in enumerate(self.concept)]]

    def lasting(self, rounds: int) -> "ComposedPartition":
        """Return a partition whose drift goes on for this many rounds."""
        return self.model_copy(update={"drift": [event.lasting(rounds) for event in self.drift]})

    @classmethod
    def _more_defaults(cls, filled: dict[str, Any]) -> dict[str, Any]:
        for key in ("features", "concept", "drift"):
            if isinstance(filled.get(key), Mapping):
                filled[key] = [filled[key]]
        sizes = filled.get("cluster_sizes")
        if are_sizes(sizes):
            filled.setdefault("clients", sum(sizes))
        given = filled.get("quantity")
        sizes = given.get("sizes") if isinstance(given, Mapping) else None
        if are_sizes(sizes):
            filled.setdefault("clients", len(sizes))
        for part in [*_mappings(filled.get("features")), *_mappings(filled.get("concept"))]:
            named = next(
                (len(v) for k, v in part.items() if k not in PlacedPart.model_fields and _is_planted(part, k, v)), 1
            )
            if named > 1:
                filled.setdefault("clusters", named)
        if "natural" not in filled:
            filled.setdefault("clients", 20)
        return super()._more_defaults(filled)

    @model_validator(mode="after")
    def _parts_fit(self) -> "ComposedPartition":
        if self.natural is not None and self.labels is not None:
            raise ValueError("partition.natural and partition.labels both say who has which samples: use one of them")
        if self.natural is not None and self.quantity is not None and not isinstance(self.quantity, RangeQuantity):
            raise ValueError(
                f"partition.quantity.kind={self.quantity.kind} does not go with partition.natural, whose clients have"
                " what they have: use range, which takes clients with at least min and of each at most max"
            )
        if isinstance(self.quantity, SizesQuantity) and len(self.quantity.sizes) != self.clients:
            raise ValueError(
                f"partition.quantity.sizes names {len(self.quantity.sizes)} sizes for partition.clients={self.clients}:"
                " give one per client, or leave partition.clients out"
            )
        for place, part in self.placed:
            self._check_clusters(f"{place}.clusters", part.clusters)
            for key, values in part.values.items() if part.by == "cluster" else ():
                if len(values) not in (1, self.clusters):
                    raise ValueError(
                        f"{place}.{key}={shown(values)} has {len(values)} values for partition.clusters="
                        f"{self.clusters}: give one per cluster, or one for all"
                    )
        for at, event in enumerate(self.drift):
            self._check_clusters(f"partition.drift.{at}.clusters", event.clusters)
            if isinstance(event.to, list):
                self._check_clusters(f"partition.drift.{at}.to", event.to)
                if len(event.to) not in (1, self.clusters):
                    raise ValueError(
                        f"partition.drift.{at}.to={shown(event.to)} must name one cluster for all, or one for each of"
                        f" the {self.clusters} clusters"
                    )
        if self.labels is not None and self.labels.kind.startswith("cluster_") and self.clusters == 1:
            raise ValueError(
                f"partition.labels.kind={self.labels.kind} needs partition.clusters of 2 or more, or use"
                f" {self.labels.kind.removeprefix('cluster_')}"
            )
        if self.drift and self.clusters == 1:
            raise ValueError("partition.drift needs clusters to change between: set partition.clusters to 2 or more")
        return self

    def _check_clusters(self, key: str, clusters: list[int] | None) -> None:
        if clusters and max(clusters) >= self.clusters:
            raise ValueError(
                f"{key}={shown(clusters)}: there is no cluster {max(clusters)}, partition.clusters={self.clusters} are"
                " numbered from 0"
            )


def _mappings(given: Any) -> list[Mapping[str, Any]]:
    return [part for part in given if isinstance(part, Mapping)] if isinstance(given, list) else []


def _is_planted(part: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a key of a part names a value for each cluster, so that its length is the number of clusters."""
    if not isinstance(value, list) or part.get("by", "cluster") != "cluster":
        return False
    depth = {"order": 2, "pairs": 3}.get(key, 1)
    return _depth(value) >= depth


def _depth(value: Any) -> int:
    """Return how deep lists are nested."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
