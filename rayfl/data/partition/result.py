"""What a partition is, once it is made: who has which samples, and through which transform it sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.counting import count_labels


@dataclass(frozen=True)
class Change:
    """From round `round` on, these clients are in these planted clusters and see samples through these transforms.

    `transform_of` holds numbers of the partition's transforms; None: clients see what they saw before.
    """

    round: int
    clients: np.ndarray
    true_cluster: np.ndarray
    transform_of: np.ndarray | None = None


def clusters_at(true_cluster: np.ndarray, changes: Sequence[Change], round: int) -> np.ndarray:
    """Return the planted cluster of each client in a round: those at the start, and what has changed since."""
    found = true_cluster
    for change in changes:
        if change.round <= round:
            found = found.copy() if found is true_cluster else found
            found[change.clients] = change.true_cluster
    return found


@dataclass(frozen=True)
class Partition:
    """Who gets which samples, as flat arrays: client i has `train[train_offsets[i] : train_offsets[i + 1]]`.

    No sample is in two of `train`, `validation`, `test` and `public`; no client has the public samples. `true_cluster`
    is set where clusters are planted. Client i sees its samples through `transforms[transform_of[i]]`, and is called
    `client_names[i]` where the data name the clients. `changes`, sorted by round, change `true_cluster` and
    `transform_of` during the run. Rounds are counted from 1; round 0 is before the first.
    """

    train: np.ndarray
    train_offsets: np.ndarray
    test: np.ndarray
    test_offsets: np.ndarray
    validation: np.ndarray
    validation_offsets: np.ndarray
    public: np.ndarray
    true_cluster: np.ndarray | None = None
    transforms: tuple[Transform, ...] = ()
    transform_of: np.ndarray | None = None
    client_names: tuple[str, ...] | None = None
    changes: tuple[Change, ...] = ()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train_offsets) - 1

    @property
    def n_train(self) -> np.ndarray:
        """Training samples of each client."""
        return np.diff(self.train_offsets)

    @property
    def n_test(self) -> np.ndarray:
        """Test samples of each client."""
        return np.diff(self.test_offsets)

    @property
    def n_validation(self) -> np.ndarray:
        """Validation samples of each client."""
        return np.diff(self.validation_offsets)

    def label_of(self, client: int) -> str:
        """A client as messages show it: its number, and its name where the data name the clients."""
        return str(client) if self.client_names is None else f"{client} ({self.client_names[client]})"

    def train_of(self, client: int) -> np.ndarray:
        """Indices of a client's training samples."""
        return self.train[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test_of(self, client: int) -> np.ndarray:
        """Indices of a client's test samples."""
        return self.test[self.test_offsets[client] : self.test_offsets[client + 1]]

    def validation_of(self, client: int) -> np.ndarray:
        """Indices of a client's validation samples."""
        return self.validation[self.validation_offsets[client] : self.validation_offsets[client + 1]]

    def true_cluster_at(self, round: int) -> np.ndarray | None:
        """The planted cluster of each client in a round, where clusters are planted."""
        return None if self.true_cluster is None else clusters_at(self.true_cluster, self.changes, round)

    def transform_of_at(self, round: int) -> np.ndarray | None:
        """The number of each client's transform in a round, where clients have any."""
        found = self.transform_of
        for change in self.changes:
            if change.round <= round and change.transform_of is not None and found is not None:
                found = found.copy() if found is self.transform_of else found
                found[change.clients] = change.transform_of
        return found

    def transform_for(self, client: int, round: int = 0) -> Transform | None:
        """The transform through which a client sees its samples in a round; None if there is none."""
        if self.transform_of is None:
            return None
        number = self.transform_of[client]
        if self.changes:
            clients, rounds, numbers = self._transforms_over_time
            begin, end = np.searchsorted(clients, [client, client + 1])
            passed = int(np.searchsorted(rounds[begin:end], round, side="right"))
            number = numbers[begin + passed - 1] if passed else number
        return self.transforms[number]

    @cached_property
    def _transforms_over_time(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All changes of transforms as clients, rounds and new transforms, sorted by client, then by round."""
        some = [change for change in self.changes if change.transform_of is not None]
        none = np.zeros(0, np.int64)
        clients = np.concatenate([none, *[change.clients for change in some]])
        rounds = np.concatenate([none, *[np.full(len(change.clients), change.round) for change in some]])
        numbers = np.concatenate([none, *[change.transform_of for change in some]])
        order = np.argsort(clients, kind="stable")  # changes are sorted by round
        return clients[order], rounds[order], numbers[order]

    def label_counts(
        self, dataset: Dataset, split: Literal["train", "validation", "test", "all"] = "train", round: int = 0
    ) -> np.ndarray:
        """Samples of each class that a client sees in a round (clients, classes): after its label transform."""
        counts = np.zeros((self.clients, dataset.classes), dtype=np.int64)
        if split in ("train", "all"):
            counts += count_labels(dataset, self.train, self.n_train)
        if split in ("validation", "all"):
            counts += count_labels(dataset, self.validation, self.n_validation)
        if split in ("test", "all"):
            counts += count_labels(dataset, self.test, self.n_test)
        if dataset.targets == "number":
            return counts
        orders = self.label_orders(dataset.classes, round)
        # Class c becomes labels[c], so new class j is the old class argsort(labels)[j].
        return counts if orders is None else np.take_along_axis(counts, np.argsort(orders, axis=1), axis=1)

    def label_orders(self, classes: int, round: int = 0) -> np.ndarray | None:
        """The label that each client sees for each class in a round (clients, classes); None: no label changes."""
        transform_of = self.transform_of_at(round)
        if transform_of is None or all(transform.labels is None for transform in self.transforms):
            return None
        same = tuple(range(classes))
        return np.array([same if t.labels is None else t.labels for t in self.transforms], np.int64)[transform_of]

    def normalised(self, dataset: Dataset) -> Dataset:
        """Return the data set with inputs normalised over what clients see: some may see them inverted.

        With p the share of inverted training samples, mean m and variance v become (1 - p) m + p (255 - m) and
        v + p (1 - p) (255 - 2 m)^2. Turns and new labels change neither.
        """
        if self.transform_of is None or not any(t.inverts for t in self.transforms):
            return dataset
        inverts = np.array([t.inverts for t in self.transforms])[self.transform_of]
        share = self.n_train[inverts].sum() / len(self.train)
        scale = dataset.scale.astype(np.float64)
        mean, variance = -dataset.shift / scale, scale**-2
        mean, variance = (
            (1 - share) * mean + share * (255 - mean),
            variance + share * (1 - share) * (255 - 2 * mean) ** 2,
        )
        scale = variance**-0.5
        return replace(dataset, shift=(-mean * scale).astype(np.float32), scale=scale.astype(np.float32))
