"""Config keys of `partition.features` and `partition.concept`: what sets clusters or clients apart, besides labels."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from rayfl.config.section import MOST, Section
from rayfl.config.union import OWN, tag_of
from rayfl.errors import shown

#: The most values that a part names, one per cluster.
MOST_VALUES = 1000
Class = Annotated[int, Field(ge=0, lt=MOST)]
Pair = Annotated[list[Class], Field(min_length=2, max_length=2)]


def _as_list(given: Any) -> Any:
    return given if isinstance(given, list) else [given]


def _as_lists(given: Any) -> Any:
    """Turn a single list of numbers, which is for all clusters, into a list of lists."""
    return [given] if isinstance(given, list) and given and not isinstance(given[0], list) else given


def _as_lists_of_pairs(given: Any) -> Any:
    """Turn a single list of pairs, which is for all clusters, into a list of lists."""
    first = next((inner for inner in given if inner != []), None) if isinstance(given, list) else None
    one = isinstance(first, list) and not isinstance(first[0], list)
    return [given] if one else given


def _numbers(low: float, high: float) -> Any:
    """Return the type of one number, or a list of them."""
    number = {"type": "number", "minimum": low, "maximum": high}
    schema = {"anyOf": [number, {"type": "array", "items": number, "minItems": 1, "maxItems": MOST_VALUES}]}
    return Annotated[
        list[Annotated[float, Field(ge=low, le=high)]],
        BeforeValidator(_as_list),
        Field(min_length=1, max_length=MOST_VALUES),
        WithJsonSchema(schema),
    ]


VALUES = "one number for all, a list with one per cluster, or with by: client a range [low, high] to draw from"


class PlacedPart(Section):
    """Who gets what of a part: the keys of every feature and concept."""

    kind: str = Field(description="what is done, or package.module:name of one's own")
    by: Literal["cluster", "client"] = Field(
        "cluster",
        description="cluster: planted, it sets clusters apart; client: each client has its own, in any cluster",
    )
    share: float | None = Field(
        None, gt=0, le=1, description="share of the clients that it is for, drawn evenly over the clusters (all)"
    )
    clusters: list[Annotated[int, Field(ge=0, lt=MOST)]] | None = Field(
        None, min_length=1, description="the clusters that it is for (all)"
    )

    @property
    def values(self) -> dict[str, list[Any]]:
        """Values of the part's own keys: one for all, one per cluster, or with by=client a range or list for draws."""
        own = [key for key in type(self).model_fields if key not in PlacedPart.model_fields]
        return {key: getattr(self, key) for key in own if getattr(self, key) is not None}

    @model_validator(mode="after")
    def _possible_ranges(self) -> "PlacedPart":
        for key, values in self.values.items() if self.by == "client" else ():
            numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
            if numbers and len(values) > 1 and not (len(values) == 2 and values[0] <= values[1]):
                raise ValueError(
                    f"{key}={shown(values)} of the part {self.kind} with by=client must be a range [low, high] that"
                    " clients draw from"
                )
        return self


class RotationPart(PlacedPart):
    """Images turned counter-clockwise."""

    kind: Literal["rotation"] = "rotation"
    angle: _numbers(-360, 360) = Field(description=f"degrees counter-clockwise: {VALUES}")  # type: ignore[valid-type]


class BlurPart(PlacedPart):
    """Blurred images."""

    kind: Literal["blur"] = "blur"
    sigma: _numbers(0, 20) = Field(description=f"pixels, of a Gaussian: {VALUES}")  # type: ignore[valid-type]


class NoisePart(PlacedPart):
    """Gaussian noise, the same each time that a sample is seen."""

    kind: Literal["noise"] = "noise"
    std: _numbers(0, 255) = Field(  # type: ignore[valid-type]
        description=f"standard deviation in raw values, of pixels 0 to 255: {VALUES}"
    )


class ContrastPart(PlacedPart):
    """More or less contrast."""

    kind: Literal["contrast"] = "contrast"
    factor: _numbers(0, 10) = Field(  # type: ignore[valid-type]
        description=f"of the distance to middle grey, 1 leaves it: {VALUES}"
    )


class BrightnessPart(PlacedPart):
    """Brighter or darker images."""

    kind: Literal["brightness"] = "brightness"
    shift: _numbers(-255, 255) = Field(description=f"added to pixels of 0 to 255: {VALUES}")  # type: ignore[valid-type]


class SaturationPart(PlacedPart):
    """More or less colour."""

    kind: Literal["saturation"] = "saturation"
    factor: _numbers(0, 10) = Field(  # type: ignore[valid-type]
        description=f"of the distance to grey, 0 is grey and 1 leaves it: {VALUES}"
    )


class ChannelsPart(PlacedPart):
    """Colour channels in another order."""

    kind: Literal["channels"] = "channels"
    order: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=0, lt=64)]], Field(min_length=1, max_length=64)]],
        BeforeValidator(_as_lists),
        Field(min_length=1, max_length=MOST_VALUES),
    ] = Field(description="such as [2, 1, 0]: one order for all, a list with one per cluster, or some to draw from")


class InversionPart(PlacedPart):
    """Inverted pixels, 255 - x."""

    kind: Literal["inversion"] = "inversion"


class PixelPermutationPart(PlacedPart):
    """Pixels, or features, in a drawn order; the first cluster's stay unless `clusters` names it."""

    kind: Literal["permutation"] = "permutation"


class OwnFeaturePart(PlacedPart):
    """A function of a user's own on raw inputs, or a subclass of rayfl.data.partition.Feature; keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    kind: str = Field(description="package.module:function", pattern=":")

    @property
    def values(self) -> dict[str, list[Any]]:
        """The options, each as a list."""
        return {key: _as_list(value) for key, value in (self.model_extra or {}).items()}


AnyFeature = Annotated[
    Annotated[RotationPart, Tag("kind=rotation")]
    | Annotated[BlurPart, Tag("kind=blur")]
    | Annotated[NoisePart, Tag("kind=noise")]
    | Annotated[ContrastPart, Tag("kind=contrast")]
    | Annotated[BrightnessPart, Tag("kind=brightness")]
    | Annotated[SaturationPart, Tag("kind=saturation")]
    | Annotated[ChannelsPart, Tag("kind=channels")]
    | Annotated[InversionPart, Tag("kind=inversion")]
    | Annotated[PixelPermutationPart, Tag("kind=permutation")]
    | Annotated[OwnFeaturePart, Tag("kind=package.module:function")],
    Discriminator(tag_of("kind", "", OWN + "function", PlacedPart)),
]


class SwapPart(PlacedPart):
    """Pairs of labels that change places."""

    kind: Literal["swap"] = "swap"
    pairs: (
        Annotated[
            list[Annotated[list[Pair], Field(max_length=MOST_VALUES)]],
            BeforeValidator(_as_lists_of_pairs),
            Field(min_length=1, max_length=MOST_VALUES),
        ]
        | None
    ) = Field(None, description="such as [[0, 1], [2, 3]]: for all, or a list with such a list per cluster")
    random: int | None = Field(
        None, ge=1, le=MOST, description="draw this many pairs instead; the first cluster's labels stay as they are"
    )

    @property
    def values(self) -> dict[str, list[Any]]:
        """The pairs that are given."""
        return {} if self.pairs is None else {"pairs": self.pairs}

    @model_validator(mode="after")
    def _pairs_or_random(self) -> "SwapPart":
        if (self.pairs is None) == (self.random is None):
            raise ValueError("a part of partition.concept swaps given pairs or random ones: give pairs or random")
        for pairs in self.pairs or ():
            named = [label for pair in pairs for label in pair]
            if len(set(named)) < len(named):
                raise ValueError(f"pairs={shown(pairs)} of partition.concept name a label twice: each changes once")
        return self


class LabelPermutationPart(PlacedPart):
    """Labels in a drawn order; the first cluster's stay unless `clusters` names it."""

    kind: Literal["permutation"] = "permutation"
    labels: int | None = Field(None, ge=2, le=MOST, description="how many labels change, each for another (all)")

    @property
    def values(self) -> dict[str, list[Any]]:
        """Nothing that differs between clusters: orders are drawn."""
        return {}


class OwnConceptPart(PlacedPart):
    """A subclass of rayfl.data.partition.Concept of a user's own; keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    kind: str = Field(description="package.module:Class", pattern=":")

    @property
    def values(self) -> dict[str, list[Any]]:
        """The options, each as a list."""
        return {key: _as_list(value) for key, value in (self.model_extra or {}).items()}


AnyConcept = Annotated[
    Annotated[SwapPart, Tag("kind=swap")]
    | Annotated[LabelPermutationPart, Tag("kind=permutation")]
    | Annotated[OwnConceptPart, Tag("kind=package.module:Class")],
    Discriminator(tag_of("kind", "", OWN + "Class", PlacedPart)),
]
