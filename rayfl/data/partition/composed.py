"""The kind composed: labels or owners say who has which samples, other parts how many, and how clients see them."""

from typing import Any

import numpy as np

from rayfl.config.composed import ComposedPartition, RangeQuantity
from rayfl.config.label_parts import OwnLabels
from rayfl.config.partition import PARTITIONS, NaturalPartition, OwnLabelsPartition
from rayfl.config.partition_base import PlantedPartition
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.clusters import ClusterClasses, ClusterDirichlet
from rayfl.data.partition.drift import moves
from rayfl.data.partition.flat import flat_partition
from rayfl.data.partition.kind import PartitionKind, Streams, own_kind
from rayfl.data.partition.labels import ByLabels, Classes, Dirichlet, Iid
from rayfl.data.partition.natural import Natural
from rayfl.data.partition.parts.features import Feature
from rayfl.data.partition.parts.making import Order, asked_sizes, plant_concept, plant_feature
from rayfl.data.partition.parts.planting import Planting
from rayfl.data.partition.quantity import cluster_of_clients
from rayfl.data.partition.result import Change, Partition
from rayfl.data.partition.splits import Splits, make_splits
from rayfl.errors import InputError

_LABELS: dict[str, type[ByLabels]] = {
    kind.name: kind for kind in (Iid, Dirichlet, Classes, ClusterDirichlet, ClusterClasses)
}


class Composed(PartitionKind):
    """Independent parts that combine, each of which draws from a stream of its own."""

    name = "composed"
    config: ComposedPartition

    def make(self, dataset: Dataset, seed: int) -> Partition:
        """Deal by labels or owners, then give each client its transform, and the rounds in which it changes."""
        config, streams = self.config, Streams(seed)
        dealer = self._dealer()
        splits = dealer.settle(dataset, make_splits(config, dataset, seed), streams)
        self._ask_for_sizes(dealer, splits, streams)
        dealt = dealer.checked(dealer.deal(dataset, splits, streams))
        true_cluster = self._clusters(dealer, len(dealt.n_train), streams)
        features = self._features(dataset, true_cluster, streams)
        concept = self._concept(dataset, true_cluster, streams)
        by_labels = dealer.clusters(len(true_cluster)) is not None
        if not by_labels:
            self._refuse_equal_clusters([*features, *concept])
        elif config.drift:
            raise InputError(
                f"partition.drift: clusters of partition.labels.kind={dealer.config.kind} differ in the samples that"
                " clients have, and a client keeps its samples: plant them with partition.features or partition.concept"
            )
        rngs = [streams.part("drift", "event", at) for at in range(len(config.drift))]
        moved = moves(config.drift, true_cluster, config.clusters, rngs)
        everyone = np.arange(len(true_cluster))
        # One row per client, and one for each time that a client changes: the row says what it gets of every part.
        clients = np.concatenate([everyone, *[move.clients for move in moved]])
        cluster_of = np.concatenate([true_cluster, *[move.clusters for move in moved]])
        transforms, transform_of = _transforms(features, concept, clients, cluster_of)
        changes = []
        done = len(everyone)
        for move in moved:
            numbers = None if transform_of is None else transform_of[done : done + len(move.clients)]
            changes.append(Change(move.round, move.clients, move.clusters, numbers))
            done += len(move.clients)
        return flat_partition(
            dealt,
            splits.public,
            true_cluster if config.planted is not None or by_labels else None,
            transforms,
            None if transform_of is None else transform_of[: len(everyone)],
            dealer.client_names(),
            tuple(changes),
        )

    def _dealer(self) -> PartitionKind:
        """Return the kind that deals the samples: by labels, or by owner."""
        config = self.config
        keys: dict[str, Any] = {
            key: getattr(config, key)
            for key in ("clients", "test", "validation", "public")
            if getattr(config, key) is not None
        }
        if config.natural is not None:
            if isinstance(config.quantity, RangeQuantity):
                keys["samples"] = [config.quantity.min, config.quantity.max]
            return Natural(NaturalPartition.model_validate({**keys, "column": config.owner_column}))
        labels = config.labels
        if isinstance(labels, OwnLabels):
            own = {"kind": labels.kind, **keys, **labels.options}
            return own_kind("partition.labels.kind", labels.kind)(OwnLabelsPartition.model_validate(own))
        kind = "iid" if labels is None else labels.kind
        keys |= {} if labels is None else labels.options
        if issubclass(PARTITIONS[kind], PlantedPartition):
            keys |= {"clusters": config.clusters, "cluster_sizes": config.cluster_sizes}
        dealer = _LABELS[kind](PARTITIONS[kind].model_validate(keys))
        dealer.place = "partition.labels"
        return dealer

    def _ask_for_sizes(self, dealer: PartitionKind, splits: Splits, streams: Streams) -> None:
        config = self.config
        if config.quantity is None or config.natural is not None:
            return
        if not isinstance(dealer, ByLabels):
            raise InputError(
                f"partition.quantity does not go with partition.labels.kind={dealer.config.kind}, which says itself who"
                " has which samples: remove it"
            )
        assert config.clients is not None
        total = len(splits.pool) + len(splits.test)
        rng = streams.part("quantity", config.quantity.kind, 0)
        dealer.asked = asked_sizes(config.quantity, config.clients, total, rng)

    def _clusters(self, dealer: PartitionKind, clients: int, streams: Streams) -> np.ndarray:
        """Return the planted cluster of each client; owners are shuffled, since they are sorted by name."""
        config = self.config
        found = dealer.clusters(clients)
        if found is not None:
            clusters = np.asarray(found)
            if (
                clusters.shape != (clients,)
                or clusters.dtype.kind not in "iu"
                or not _within(clusters, config.clusters)
            ):
                raise InputError(
                    f"partition.labels.kind={dealer.config.kind}: clusters() must give a number from 0 to"
                    f" {config.clusters - 1} (partition.clusters={config.clusters}) for each of the {clients} clients"
                )
            return clusters.astype(np.int64)
        if config.clusters > clients:
            raise InputError(
                f"partition.clusters={config.clusters} is more than the {clients} clients there are: use fewer"
            )
        clusters = cluster_of_clients(config.model_copy(update={"clients": clients}))
        return streams.part("clusters", "natural", 0).permutation(clusters) if config.natural is not None else clusters

    def _features(self, dataset: Dataset, true_cluster: np.ndarray, streams: Streams) -> list[Planting[Feature]]:
        found = []
        numbers: dict[str, int] = {}
        for at, part in enumerate(self.config.features):
            nth = numbers[part.kind] = numbers.get(part.kind, -1) + 1
            rng = streams.part("features", part.kind, nth)
            key = f"partition.features.{at}"
            found.append(plant_feature(part, key, dataset, true_cluster, self.config.clusters, rng))
        return found

    def _concept(self, dataset: Dataset, true_cluster: np.ndarray, streams: Streams) -> list[Planting[Order]]:
        if self.config.concept and dataset.targets == "number":
            raise InputError(
                "partition.concept changes classes, and the labels of these data are numbers: remove it, or use"
                " partition.features"
            )
        found = []
        numbers: dict[str, int] = {}
        for at, part in enumerate(self.config.concept):
            nth = numbers[part.kind] = numbers.get(part.kind, -1) + 1
            rng = streams.part("concept", part.kind, nth)
            key = f"partition.concept.{at}"
            found.append(plant_concept(part, key, dataset.classes, true_cluster, self.config.clusters, rng))
        return found

    def _refuse_equal_clusters(self, plantings: list[Planting[Any]]) -> None:
        """Refuse clusters that nothing sets apart."""
        clusters = self.config.clusters
        seen: dict[tuple[Any, ...], int] = {}
        for cluster in range(clusters):
            looks = tuple(planting.of_cluster(cluster) for planting in plantings)
            if looks in seen:
                raise InputError(
                    f"partition.clusters={clusters}: nothing sets cluster {cluster} apart from cluster {seen[looks]}:"
                    " give a part of partition.features or partition.concept one value per cluster, or use labels of"
                    " cluster_dirichlet or cluster_classes"
                )
            seen[looks] = cluster


def _within(clusters: np.ndarray, count: int) -> bool:
    return bool(len(clusters)) and clusters.min() >= 0 and clusters.max() < count


def _transforms(
    features: list[Planting[Feature]], concept: list[Planting[Order]], clients: np.ndarray, cluster_of: np.ndarray
) -> tuple[tuple[Transform, ...], np.ndarray | None]:
    """Return the transforms that occur, each once, and the number of the transform of each row."""
    plantings: list[Planting[Any]] = [*features, *concept]
    parts = [planting.numbers(clients, cluster_of) for planting in plantings]
    rows, numbers = np.unique(np.stack([np.zeros_like(clients), *parts], axis=1), axis=0, return_inverse=True)
    if not (rows[:, 1:] >= 0).any():
        return (), None
    transforms = []
    for row in rows[:, 1:].tolist():
        chosen = zip(features, row[: len(features)], strict=True)
        steps = tuple(planting.things[at] for planting, at in chosen if at >= 0)
        labels: Order | None = None
        for planting, at in zip(concept, row[len(features) :], strict=True):
            if at >= 0:
                order = planting.things[at]
                assert order is not None
                labels = order if labels is None else tuple(order[label] for label in labels)
        transforms.append(Transform(labels=labels, steps=steps))
    return tuple(transforms), numbers.reshape(-1).astype(np.int64)
