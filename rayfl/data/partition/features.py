"""The kind transforms: planted clusters whose clients see their samples turned, inverted, or with other labels."""

import math
from dataclasses import fields

import numpy as np

from rayfl.config.partition import IidPartition, TransformsPartition
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.clusters import Planted
from rayfl.data.partition.kind import Streams
from rayfl.data.partition.labels import Iid
from rayfl.data.partition.quantity import check_range
from rayfl.data.partition.splits import Dealt, Splits, cut_once
from rayfl.errors import InputError
from rayfl.host_memory import POSITION, Need, memory_here, refuse_excess


class Transforms(Planted, Iid):
    """Clusters of clients that see their samples through different transforms; who gets which samples is iid."""

    name = "transforms"
    config: TransformsPartition  # type: ignore[assignment]  # dealt as Iid deals, with other keys

    def transforms(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Transform, ...]:
        """Return one transform per cluster."""
        config = self.config
        if config.transform == "label_permutation":
            return tuple(Transform(labels=order) for order in self._label_orders(dataset, rng))
        if dataset.kind != "image":
            raise InputError(
                f"partition.transform={config.transform} needs images, and this source has {dataset.kind}"
                " samples: use partition.transform=label_permutation"
            )
        if config.transform == "inversion":
            self._need_whole_pixels(dataset)
            return tuple(Transform(invert=k == 1) for k in range(config.clusters))
        angles = config.angles or [90.0 * k for k in range(config.clusters)]
        _, height, width = dataset.input_shape
        if height != width and any(round(angle, 6) % 180 for angle in angles):
            raise InputError(
                f"partition.transform=rotation needs square images, these are {width} x {height}: use"
                " partition.angles=[0, 180], or partition.transform=inversion or label_permutation"
            )
        turns = tuple(_rotation(angle) for angle in angles)
        if any(turn.degrees for turn in turns):
            self._need_whole_pixels(dataset)
        return turns

    def _label_orders(self, dataset: Dataset, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Return a permutation of the classes per cluster, no two the same; the first leaves them as they are."""
        clusters, classes = self.config.clusters, dataset.classes
        if dataset.targets == "number":
            raise InputError(
                "partition.transform=label_permutation needs classes, and the labels of these data are numbers: use"
                " rotation or inversion on images, or partition.kind=iid or natural"
            )
        if classes < 20 and clusters > math.factorial(classes):
            raise InputError(
                f"partition.clusters={clusters}: {classes} classes have only {math.factorial(classes)} permutations:"
                " use fewer clusters"
            )
        orders = {tuple(range(classes)): None}  # a dict keeps the order of drawing
        while len(orders) < clusters:
            orders[tuple(rng.permutation(classes).tolist())] = None
        return list(orders)

    def _need_whole_pixels(self, dataset: Dataset) -> None:
        if dataset.inputs.dtype != np.uint8:
            raise InputError(
                f"partition.transform={self.config.transform} needs pixels in whole numbers from 0 to 255, these are"
                f" {dataset.inputs.dtype}: give them as uint8, or turn by whole quarters"
            )

    def settle(self, dataset: Dataset, splits: Splits, streams: Streams) -> Splits:
        """With partition.whole_per_cluster, cut test and validation samples once for all clusters."""
        if not self.config.whole_per_cluster:
            return super().settle(dataset, splits, streams)
        splits = cut_once(self.config, dataset, splits, streams.split)
        self._check_whole(splits)
        return splits

    def deal(self, dataset: Dataset, splits: Splits, streams: Streams) -> Dealt:
        """Deal the samples once, or with partition.whole_per_cluster all of them to each cluster."""
        config = self.config
        if not config.whole_per_cluster:
            return super().deal(dataset, splits, streams)
        assert config.clients is not None
        dealt = []
        for cluster, clients in enumerate(np.bincount(self.clusters(config.clients)).tolist()):
            # Inside a cluster all clients are alike, and `settle` has already made the test and validation splits.
            inside = Iid(IidPartition(clients=clients, samples=config.samples, test="official"))
            dealt.append(inside.deal(dataset, splits, streams.of_cluster(cluster)))
        names = [field.name for field in fields(Dealt)]
        return Dealt(*(np.concatenate([getattr(part, name) for part in dealt]) for name in names))

    def _check_whole(self, splits: Splits) -> None:
        """Refuse clusters with more clients than samples, and more copies of the samples than there is memory for."""
        config = self.config
        assert config.clients is not None
        largest = max(config.cluster_sizes or [-(-config.clients // config.clusters)])
        most = min(len(splits.pool), len(splits.test))
        if largest > most:
            raise InputError(
                f"partition.whole_per_cluster: the {largest} clients of a cluster cannot each get 1 of the"
                f" {len(splits.pool)} training and 1 of the {len(splits.test)} test samples: use at most {most} clients"
                " per cluster"
            )
        total = len(splits.pool) + len(splits.test)
        check_range(config, largest, total)
        held = config.clusters * total
        if config.samples is not None:
            held = min(held, config.clients * config.samples[0])
        what = f"the samples of {config.clusters:,} clusters that each hold the whole data set"
        refuse_excess([Need(what, POSITION * held, "partition.clusters")], memory_here())


def _rotation(angle: float) -> Transform:
    turns, degrees = divmod(round(angle, 6) % 360, 90)
    return Transform(turns=int(turns), degrees=degrees)
