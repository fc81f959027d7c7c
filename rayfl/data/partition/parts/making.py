"""Make parts from the sections of a config: features, label orders and sizes, each drawn from its own stream."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from rayfl.config.composed import QuantityConfig
from rayfl.config.feature_parts import LabelPermutationPart, PlacedPart, SwapPart
from rayfl.data.dataset import Dataset
from rayfl.data.partition.parts.concept import CONCEPTS, Concept
from rayfl.data.partition.parts.features import FEATURES, Feature, OwnFeature
from rayfl.data.partition.parts.planting import Planting, planted
from rayfl.data.partition.parts.quantity import QUANTITIES, Quantity, Sizes
from rayfl.data.partition.quantity import AskedSizes
from rayfl.errors import InputError, RayflError, shown
from rayfl.own_code import imported, told_as

_DISTINCT_TRIES = 200
_TRIED = 3  # values with which a function of a user's own is tried
#: A new label for each class.
Order = tuple[int, ...]


def plant_feature(
    part: PlacedPart,
    key: str,
    dataset: Dataset,
    true_cluster: np.ndarray,
    clusters: int,
    rng: np.random.Generator,
) -> Planting[Feature]:
    """Return what a feature part does to which clients; refuse features that do not fit these data."""
    kind = FEATURES.get(part.kind, OwnFeature)
    seed = int(rng.integers(2**62))
    stays = _first_stays(part, clusters)

    def make(values: dict[str, Any], number: int) -> Feature | None:
        plain = {key: _frozen(value) for key, value in values.items()}
        if kind is OwnFeature:
            own = OwnFeature(part.kind, tuple(sorted(plain.items())))
            if number < _TRIED:  # `check` calls the user's function
                own.check(dataset, key)
            return own
        if kind.seeded == "each" and stays and number == 0:
            return None
        if kind.seeded != "no":
            plain["seed"] = seed + (number if kind.seeded == "each" else 0)
        feature = kind(**plain)
        feature.check(dataset, key)
        return None if feature.nothing else feature

    return planted(part, true_cluster, clusters, rng, make)


def plant_concept(
    part: PlacedPart, key: str, classes: int, true_cluster: np.ndarray, clusters: int, rng: np.random.Generator
) -> Planting[Order]:
    """Return which labels a concept part gives to whom; orders that are drawn for clusters are all different."""
    same = tuple(range(classes))
    seen: set[Order] = {same}

    def make(values: dict[str, Any], number: int) -> Order | None:
        concept = _concept(part, key, values)
        if concept.drawn and number == 0 and _first_stays(part, clusters):
            return None
        order = _order(concept, classes, key, rng)
        if concept.drawn and part.by == "cluster":
            for _ in range(_DISTINCT_TRIES):
                if order not in seen:
                    break
                order = _order(concept, classes, key, rng)
            else:
                raise InputError(
                    f"{key}: {classes} labels have too few orders of this kind for {clusters} clusters that differ: use"
                    " fewer clusters"
                )
            seen.add(order)
        return None if order == same else order

    return planted(part, true_cluster, clusters, rng, make)


def asked_sizes(config: QuantityConfig, clients: int, total: int, rng: np.random.Generator) -> AskedSizes:
    """Return the sizes that a quantity part asks for."""
    keys = {key: _frozen(value) for key, value in config.model_dump().items() if key != "kind" and value is not None}
    quantity = (
        Sizes(keys["sizes"])
        if config.kind == Sizes.name
        else _made("partition.quantity", config.kind, keys, _quantities)
    )
    assert isinstance(quantity, Quantity)
    with told_as(RayflError, f"partition.quantity.kind={config.kind} failed"):
        sizes = np.asarray(quantity.sizes(clients, total, rng))
    if sizes.shape != (clients,) or sizes.dtype.kind not in "iu":
        raise InputError(
            f"partition.quantity.kind={config.kind}: sizes gives an array of {sizes.dtype} of shape {sizes.shape}: it"
            f" must give a whole number of samples for each of the {clients} clients"
        )
    if sizes.min() < 2:
        raise InputError(
            f"partition.quantity.kind={config.kind} gives client {sizes.argmin()} {sizes.min()} samples: each of the"
            f" {clients} clients needs at least 2"
        )
    return AskedSizes(sizes.astype(np.int64), quantity.exact)


def _quantities(name: str) -> Any:
    return QUANTITIES.get(name) or _own("partition.quantity.kind", name, Quantity)


def _concept(part: PlacedPart, key: str, values: dict[str, Any]) -> Concept:
    if isinstance(part, SwapPart):
        return CONCEPTS[part.kind](pairs=_frozen(values.get("pairs", ())), random=part.random or 0)  # type: ignore[call-arg]
    if isinstance(part, LabelPermutationPart):
        return CONCEPTS[part.kind](labels=part.labels or 0)  # type: ignore[call-arg]
    plain = {name: _frozen(value) for name, value in values.items()}
    made = _made(key, part.kind, plain, lambda path: _own(f"{key}.kind", path, Concept))
    assert isinstance(made, Concept)
    return made


def _order(concept: Concept, classes: int, key: str, rng: np.random.Generator) -> Order:
    with told_as(RayflError, f"{key} failed"):
        order = np.asarray(concept.order(classes, rng))
    if order.shape != (classes,) or order.dtype.kind not in "iu":
        raise InputError(
            f"{key}: order gives an array of {order.dtype} of shape {order.shape}: it must give the new label of each"
            f" of the {classes} classes"
        )
    labels: Order = tuple(order.tolist())
    if sorted(labels) != list(range(classes)):
        raise InputError(f"{key} gives the labels {shown(list(labels))}: each of 0 to {classes - 1} must be there once")
    return labels


def _made(key: str, kind: str, values: dict[str, Any], find: Callable[[str], Any]) -> Any:
    found = find(kind)
    known = {field.name for field in fields(found)}
    for name in values:
        if name not in known:
            raise InputError(f"{key}.{name}: {kind} has no such option; it has {', '.join(sorted(known)) or 'none'}")
    with told_as(RayflError, f"{key}.kind={kind} cannot be made with {values}"):
        return found(**values)


def _own(key: str, path: str, base: type) -> Any:
    found = imported(key, path, "class", lambda value: isinstance(value, type) and issubclass(value, base))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{key}={path} is not a subclass of rayfl.data.partition.{base.__name__}: make it one")
    return found


def _first_stays(part: PlacedPart, clusters: int) -> bool:
    """Whether a part that is drawn for each cluster leaves the first cluster as it is."""
    return part.by == "cluster" and part.clusters is None and clusters > 1


def _frozen(value: Any) -> Any:
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list | tuple) else value
