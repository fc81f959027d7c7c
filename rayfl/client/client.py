"""One client as a function given to `fed.map` sees it: data, models, what it keeps, random numbers, the device."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from rayfl.client.handed import MODEL
from rayfl.client.schedules import learning_rate
from rayfl.client.stacked import sample_losses, stacked_features, stacked_logits
from rayfl.client.task import Task
from rayfl.config import LocalConfig
from rayfl.models import FlatModel, Layout
from rayfl.randomness import Purpose, generator

if TYPE_CHECKING:
    from rayfl.client.worker import Worker

#: The samples that a function on a client may look at: never the test samples.
Known = Literal["train", "validation"]


class Client:
    """One client, as a function given to `fed.map` can read and change it.

    Vectors are models as flat arrays (size,), parameters first; see `layout`. The result of a function must depend only
    on this client, the function's arguments and `rng`: then it has the same bits on any worker.
    """

    def __init__(self, worker: "Worker", number: int, round: int, stream: int) -> None:
        self._worker, self.number, self.round, self._stream = worker, number, round, stream
        self.newly_kept: set[str] = set()
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """A random generator for this client, round and stream; every call of `fed.map` starts it again."""
        if self._rng is None:
            keys = (self.round, self.number, self._stream)
            self._rng = generator(self._worker.config.seed, Purpose.MAP, *keys)
        return self._rng

    @property
    def device(self) -> torch.device:
        """Where this client computes."""
        return self._worker.device

    @property
    def layout(self) -> Layout:
        """Where each tensor lies in a vector."""
        return self._worker.layout

    @property
    def task(self) -> Task:
        """The loss and the metrics."""
        return self._worker.task

    @property
    def local(self) -> LocalConfig:
        """How clients train: the config's `local`."""
        return self._worker.config.local

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return learning_rate(self.local, self.round)

    @property
    def initial(self) -> np.ndarray:
        """The model that all clients start from."""
        return self._worker.initial

    # -- data --------------------------------------------------------------------------------------------------------

    def samples(self, split: Known = "train") -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs, as networks see them, and the labels, on this client's device; never test samples."""
        partition = self._worker.partition
        of = partition.train_of if split == "train" else partition.validation_of
        return self._worker.samples(self.number, of(self.number), self.round)

    def public(self, samples: np.ndarray) -> torch.Tensor:
        """Return the public samples with these numbers, as networks see them; public samples belong to no client."""
        return self._worker.dataset.batch(samples)[0].to(self.device)

    def label_counts(self) -> np.ndarray:
        """Return how many training samples this client has of each class."""
        return np.bincount(self.samples()[1].cpu().numpy(), minlength=self._worker.dataset.classes)

    # -- models, and what else is kept -------------------------------------------------------------------------------

    def model(self, slot: str = MODEL) -> np.ndarray:
        """Return a copy of the client's latest model in a slot; the initial model if there is none."""
        return self._worker.model_of(slot, self.number).copy()

    def kept(self, name: str) -> np.ndarray | None:
        """Return a copy of the vector that was kept under a name; None if there is none."""
        found = self._worker.states.get(name, self.number)
        return None if found is None else found.copy()

    def keep(self, name: str, vector: np.ndarray) -> None:
        """Keep a vector of the size of a model or of its parameters for later rounds; checkpoints save it."""
        size, parameters = self.layout.size, self.layout.parameters
        if vector.shape not in ((size,), (parameters,)):
            raise ValueError(f"a vector of shape {vector.shape} cannot be kept: it must be as long as a model, {size}")
        whole = np.zeros(size, np.float32)
        whole[: len(vector)] = vector
        self._worker.store(name, self.number, whole, keep=True)
        self.newly_kept.add(name)

    # -- computing ---------------------------------------------------------------------------------------------------

    @property
    def network(self) -> FlatModel:
        """The network. Use only its architecture: its current weights may be those of another client."""
        return self._worker.model

    def outputs(self, vectors: np.ndarray, inputs: torch.Tensor) -> np.ndarray:
        """Return the outputs of models (K, size) for samples, in eval mode (K, n, outputs)."""
        return stacked_logits(self.network, self._tensor(vectors), inputs).cpu().numpy()

    def probabilities(self, vectors: np.ndarray, inputs: torch.Tensor) -> np.ndarray:
        """Return the class probabilities that models (K, size) give samples, in eval mode (K, n, classes)."""
        return stacked_logits(self.network, self._tensor(vectors), inputs).softmax(2).cpu().numpy()

    def features(self, vectors: np.ndarray, inputs: torch.Tensor) -> np.ndarray:
        """Return the inputs of the heads of models (K, size) for samples, in eval mode (K, n, features)."""
        return stacked_features(self.network, self._tensor(vectors), inputs).cpu().numpy()

    def losses(
        self, vectors: np.ndarray, beside: np.ndarray | None = None, most: int | None = None, split: Known = "train"
    ) -> np.ndarray:
        """Return the loss of models (K, size) on each training or validation sample, in eval mode (K, n).

        The outputs of the model `beside` (size,), if given, are added to those of each model (CAM, Eq. 2). With `most`,
        at most that many samples count, drawn with `rng`. All calls of `fed.map` in a round with the same stream use
        the same samples, if they draw nothing else before.
        """
        (inputs, labels), stack = self.samples(split), self._tensor(vectors)
        if most is not None and len(labels) > most:
            drawn = torch.from_numpy(np.sort(self.rng.permutation(len(labels))[:most])).to(self.device)
            inputs, labels = inputs[drawn], labels[drawn]
        added = None if beside is None else stacked_logits(self.network, self._tensor(beside), inputs)[0]
        return sample_losses(self.network, stack, inputs, labels, added, self.task).cpu().numpy()

    def gradient(self, vector: np.ndarray) -> np.ndarray:
        """Return the gradient (parameters,) of the mean loss over all training samples, in eval mode."""
        network, (inputs, labels) = self.network, self.samples()
        with network.outside.fresh():
            network.load(vector)
            network.gradient.zero_()
            network.module.eval()
            for x, y in zip(inputs.split(_PASS), labels.split(_PASS), strict=True):
                (self.task.loss(network.module(x), y).sum() / len(labels)).backward()
            found = network.gradient.cpu().numpy().copy()
        network.gradient.zero_()
        return found

    def _tensor(self, vectors: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.atleast_2d(vectors), device=self.device)


_PASS = 512  # samples per pass of `gradient`
