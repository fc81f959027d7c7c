"""What a partition is, once it is made: who has which samples, and through which transform it sees them."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.counting import count_labels


@dataclass(frozen=True)
class Partition:
    """Who gets which samples, as flat arrays: client i has `train[train_offsets[i] : train_offsets[i + 1]]`.

    No sample is in two of `train`, `validation`, `test` and `public`; the last are nobody's. `true_cluster` is there
    where clusters are planted. Client i sees its samples through `transforms[transform_of[i]]`, and is called
    `client_names[i]` where the data name the clients.
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

    def transform_for(self, client: int) -> Transform | None:
        """What sets this client's samples apart, if anything does."""
        return None if self.transform_of is None else self.transforms[self.transform_of[client]]

    def label_counts(
        self, dataset: Dataset, split: Literal["train", "validation", "test", "all"] = "train"
    ) -> np.ndarray:
        """Samples of each class that a client sees (clients, classes): after its label transform."""
        counts = np.zeros((self.clients, dataset.classes), dtype=np.int64)
        if split in ("train", "all"):
            counts += count_labels(dataset, self.train, self.n_train)
        if split in ("validation", "all"):
            counts += count_labels(dataset, self.validation, self.n_validation)
        if split in ("test", "all"):
            counts += count_labels(dataset, self.test, self.n_test)
        if dataset.targets == "number":
            return counts
        for number, transform in enumerate(self.transforms):
            if transform.labels is not None and self.transform_of is not None:
                rows = self.transform_of == number
                # Class c becomes labels[c], so new class j is the old class argsort(labels)[j].
                counts[rows] = counts[rows][:, np.argsort(transform.labels)]
        return counts

    def normalised(self, dataset: Dataset) -> Dataset:
        """Return the data set with inputs normalised over what clients see: some may see them inverted.

        With p the share of inverted training samples, mean m and variance v become (1 - p) m + p (255 - m) and
        v + p (1 - p) (255 - 2 m)^2. Turns and new labels change neither.
        """
        if self.transform_of is None or not any(t.invert for t in self.transforms):
            return dataset
        inverts = np.array([t.invert for t in self.transforms])[self.transform_of]
        share = self.n_train[inverts].sum() / len(self.train)
        scale = dataset.scale.astype(np.float64)
        mean, variance = -dataset.shift / scale, scale**-2
        mean, variance = (
            (1 - share) * mean + share * (255 - mean),
            variance + share * (1 - share) * (255 - 2 * mean) ** 2,
        )
        scale = variance**-0.5
        return replace(dataset, shift=(-mean * scale).astype(np.float32), scale=scale.astype(np.float32))
