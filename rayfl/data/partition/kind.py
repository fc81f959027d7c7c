"""What a kind of partition is. A user's own kind is a subclass of `PartitionKind`, named by its import path."""

from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ValidationError

from rayfl.config import PartitionConfig, Section, describe_errors, partition_config
from rayfl.config.partition import OwnPartition
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.counting import by_client_and_label, count_labels, share_out, split_off
from rayfl.data.partition.dealing import Deal, Wish, take
from rayfl.data.partition.flat import flat_partition
from rayfl.data.partition.result import Partition
from rayfl.data.partition.splits import Dealt, Splits, keeps_validation_share, make_splits, with_validation_share
from rayfl.errors import InputError, RayflError, closest, shown
from rayfl.object_names import object_name
from rayfl.own_code import imported, told_as
from rayfl.randomness import Purpose, generator

# Separate streams of one purpose, so that a validation split changes no bit of the rest. Sources draw data.limit from
# stream 1, and public samples are drawn from stream 2.
_STREAM, _VALIDATION_STREAM, _SPLIT_STREAM, _PART_STREAM = 0, 3, 4, 5


def own_kind(key: str, path: str) -> type["PartitionKind"]:
    """Return the class behind `package.module:Class`, the value of a config key."""
    found = imported(key, path, "class", _is_kind)
    if not _is_kind(found):
        raise InputError(f"{key}={path} is not a subclass of rayfl.data.PartitionKind: make it one")
    return found


def _is_kind(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, PartitionKind)


class Streams:
    """The random numbers of a partition: `main` for who gets what, others for validation, splits and parts."""

    def __init__(self, seed: int, *keys: int) -> None:
        self._seed = seed
        self.main = generator(seed, Purpose.PARTITION, _STREAM, *keys)
        self.validation = generator(seed, Purpose.PARTITION, _VALIDATION_STREAM, *keys)
        self.split = generator(seed, Purpose.PARTITION, _SPLIT_STREAM, *keys)

    def part(self, section: str, kind: str, number: int) -> np.random.Generator:
        """Return the stream of one part, by its section, its kind and its number among the parts of that kind.

        So adding a part changes no bit of the others.
        """
        name = int.from_bytes(blake2b(f"{section} {kind}".encode(), digest_size=4).digest(), "big")
        return generator(self._seed, Purpose.PARTITION, _PART_STREAM, name, number + 1)

    def of_cluster(self, cluster: int) -> "Streams":
        """Return the streams of one planted cluster, where each is dealt on its own."""
        # Keys begin at 1, because a last key of 0 gives the same numbers as no key.
        return Streams(self._seed, cluster + 1)

    @property
    def seed(self) -> int:
        """The seed itself, for other packages, which draw random numbers in their own way."""
        return self._seed


class PartitionKind:
    """A way to deal samples to clients. `config` has the keys of `partition`, `options` the kind's own.

    A subclass writes `assign`. It may describe its options as a pydantic model called `Options`, plant clusters of
    clients with `clusters`, and let each cluster see its samples through one of `transforms`. Splits into training,
    validation and test samples come afterwards, as the config says.
    """

    #: The name in a config; a user's own kind is named by its import path.
    name: ClassVar[str] = ""
    #: Where the keys are, for messages: partition.labels for the part of a composed partition.
    place: str = "partition"
    #: The options of a user's own kind, next to clients, test, validation and public.
    Options: ClassVar[type[BaseModel]] = Section
    config: PartitionConfig
    options: Any

    def __init__(self, config: PartitionConfig | None = None, **keys: Any) -> None:
        """Take the keys of `partition` as a config has them, or as keyword arguments."""
        self._keys = {"kind": self.config_name(), **keys}
        self.config = partition_config(**self._keys) if config is None else config
        if isinstance(self.config, OwnPartition):
            self.place = self.config.place
        self.options = self._checked_options() if isinstance(self.config, OwnPartition) else self.config

    def config_keys(self) -> dict[str, Any]:
        """Return the keys of `partition` that stand for this object in a config."""
        return dict(self._keys)

    @classmethod
    def config_name(cls) -> str:
        """Return the value of partition.kind for this class: its name, or its import path if it can be imported."""
        if cls.name:
            return cls.name
        if "." in cls.__qualname__ or cls.__module__ == "__main__":
            return object_name(cls)
        return f"{cls.__module__}:{cls.__qualname__}"

    def make(self, dataset: Dataset, seed: int) -> Partition:
        """Return the partition: settle what samples are for, deal them, and plant clusters."""
        splits = make_splits(self.config, dataset, seed)
        streams = Streams(seed)
        splits = self.settle(dataset, splits, streams)
        transforms = self.transforms(dataset, streams.main)
        dealt = self.checked(self.deal(dataset, splits, streams))
        clusters = self._checked_clusters(len(dealt.n_train), transforms)
        seen = clusters if transforms else None
        return flat_partition(dealt, splits.public, clusters, transforms, seen, self.client_names())

    def assign(self, dataset: Dataset, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the client, from 0, of each sample whose index is in `pool`; -1 if no client gets the sample.

        `dataset.labels[pool]` are their labels. Draw random numbers from `rng` only.
        """
        raise NotImplementedError

    def clusters(self, clients: int) -> np.ndarray | None:
        """Return the planted cluster of each client, from 0, after samples were dealt; None if there are none."""
        return None

    def transforms(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Transform, ...]:
        """Return the transform of each planted cluster, before samples are dealt; () if there are none."""
        return ()

    def client_names(self) -> tuple[str, ...] | None:
        """Return the names of the clients, after samples were dealt, where they have some."""
        return None

    @property
    def sized(self) -> bool:
        """Whether the config asks for clients' sizes, so that not all samples need to be dealt."""
        return getattr(self.config, "samples", None) is not None

    def settle(self, dataset: Dataset, splits: Splits, streams: Streams) -> Splits:
        """Refuse impossible configs before work starts, and change what samples are for if the kind needs that."""
        return splits

    def deal(self, dataset: Dataset, splits: Splits, streams: Streams) -> Dealt:
        """Deal all splits; here by `assign`."""
        with told_as(RayflError, f"{self.place}.kind={self.config.kind} failed"):
            found = self.assign(dataset, splits.pool, streams.main)
        client = self._checked_clients(found, len(splits.pool))
        clients = self.config.clients or int(client.max(initial=-1)) + 1
        least = 1 if self.config.test == "official" else 2
        sizes = np.bincount(client[client >= 0], minlength=clients)
        if clients == 0 or sizes.min() < least:
            poor = 0 if clients == 0 else int(sizes.argmin())
            got = 0 if clients == 0 else int(sizes.min())
            raise InputError(
                f"{self.place}.kind={self.config.kind} gives client {poor} {got} samples: each of the {clients} clients"
                f" needs at least {least}"
            )
        order = streams.main.permutation(np.flatnonzero(client >= 0))
        samples = splits.pool[order[np.argsort(client[order], kind="stable")]]
        samples = by_client_and_label(dataset, samples, sizes)
        if self.config.test != "official":
            parts = split_off(dataset, samples, sizes, self.config.test, streams.main)
            return self._with_validation(dataset, splits, parts, sizes, streams)
        if len(splits.test) < clients:
            raise InputError(
                f"partition.test=official: {clients} clients cannot each get 1 of the {len(splits.test)} test samples:"
                " use fewer clients, or a share such as partition.test=0.2"
            )
        test_sizes = share_out(sizes, len(splits.test) - clients, streams.main) + 1
        floors = np.ones(clients, np.int64)
        test = self.deal_like(dataset, splits.test, (samples, sizes), test_sizes, floors, streams.main)
        return self._with_validation(dataset, splits, (samples, sizes, *test), sizes, streams)

    def checked(self, dealt: Dealt) -> Dealt:
        """Refuse a sample that is dealt twice: a user's own kind may have its own `deal`."""
        if isinstance(self.config, OwnPartition):
            samples, times = np.unique(np.concatenate([dealt.train, dealt.validation, dealt.test]), return_counts=True)
            if (times > 1).any():
                raise InputError(
                    f"{self.place}.kind={self.config.kind} deals sample {samples[times.argmax()]}"
                    f" {times.max()} times: deal each sample once at most"
                )
        return dealt

    def deal_like(
        self,
        dataset: Dataset,
        split: np.ndarray,
        trained: tuple[np.ndarray, np.ndarray],
        sizes: np.ndarray,
        floors: np.ndarray,
        rng: np.random.Generator,
        only_known: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Deal one of the source's splits by the labels that each client has received for training."""
        known = count_labels(dataset, *trained)
        labels = dataset.class_of[split].astype(np.int64)
        deal = Deal(self.config, np.bincount(labels, minlength=dataset.classes), rng, self.sized)
        deal.wish = Wish(known, known > 0 if only_known else None)
        counts = deal.fill(sizes, floors)
        return take(counts, split, labels, rng), counts.sum(1)

    def _with_validation(
        self,
        dataset: Dataset,
        splits: Splits,
        parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        n_samples: np.ndarray,
        streams: Streams,
        only_known: bool = False,
    ) -> Dealt:
        """Add validation samples: a share of each client's, or samples of the source's own split.

        Of that split, the same share is dealt as of the pool.
        """
        if keeps_validation_share(self.config) or not len(splits.validation):
            return with_validation_share(self.config, dataset, parts, streams.validation)
        train, n_train, _, _ = parts
        total = round(len(splits.validation) * (int(n_samples.sum()) / len(splits.pool)))
        sizes = share_out(n_train, total, streams.validation)
        none = np.zeros_like(sizes)
        validation = self.deal_like(
            dataset, splits.validation, (train, n_train), sizes, none, streams.validation, only_known
        )
        return Dealt(*parts, *validation)

    def _checked_clusters(self, clients: int, transforms: tuple[Transform, ...]) -> np.ndarray | None:
        """Return the planted clusters, checked: a user's own kind may return wrong ones."""
        found = self.clusters(clients)
        if found is None:
            if transforms:
                raise InputError(
                    f"{self.place}.kind={self.config.kind} has transforms but no clusters: clusters() must say which"
                    " client is in which"
                )
            return None
        clusters = np.asarray(found)
        most = len(transforms) if transforms else None
        if clusters.shape != (clients,) or clusters.dtype.kind not in "iu" or clusters.min() < 0:
            raise InputError(
                f"{self.place}.kind={self.config.kind}: clusters() gives an array of {clusters.dtype} of shape"
                f" {clusters.shape}: it must give the number of a cluster, from 0, for each of the {clients} clients"
            )
        if most is not None and clusters.max() >= most:
            raise InputError(
                f"{self.place}.kind={self.config.kind}: cluster {clusters.max()} has no transform, there are {most}"
            )
        return clusters.astype(np.int64)

    def _checked_clients(self, found: Any, samples: int) -> np.ndarray:
        client = np.asarray(found)
        kind = f"{self.place}.kind={self.config.kind}"
        if client.shape != (samples,) or client.dtype.kind not in "iu":
            raise InputError(
                f"{kind}: assign gives an array of {client.dtype} of shape {client.shape}: it must give"
                f" the number of a client for each of the {samples} samples of the pool"
            )
        most = self.config.clients
        if samples and (client.min() < -1 or (most is not None and client.max() >= most)):
            wrong = client.min() if client.min() < -1 else client.max()
            what = "clients are numbered from 0" if most is None else f"partition.clients={most}, numbered from 0"
            raise InputError(f"{kind}: assign gives a sample to client {wrong}: {what}; -1 is nobody")
        return client.astype(np.int64)

    def _checked_options(self) -> Any:
        given = self.config.options  # type: ignore[attr-defined]  # of a kind of a user's own
        allowed = sorted(self.Options.model_fields)
        if self.Options.model_config.get("extra") != "allow":  # pydantic by itself ignores what it does not know
            faults = [
                f"{self.place}.{key}={shown(value)}: there is no key '{key}'{closest(key, [*allowed, *_COMMON])};"
                f" allowed: {', '.join([*allowed, *_COMMON])}"
                for key, value in given.items()
                if key not in allowed
            ]
            if faults:
                raise InputError(*faults)
        try:
            return self.Options.model_validate(given)
        except ValidationError as error:
            raise InputError(*describe_errors(error, self.place, self.Options)) from None


_COMMON = tuple(PartitionConfig.model_fields)
