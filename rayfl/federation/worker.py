"""What happens where clients live: one worker hosts many clients, their data in shared memory, their models here.

The same class runs in this process and inside a Ray actor; it does not know which.
"""

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rayfl.aggregation import ExactSum
from rayfl.clustering.similarity import LowRankMap, project_all
from rayfl.config import Config
from rayfl.data import Dataset, Partition
from rayfl.errors import ClientError, DivergedError
from rayfl.models import FlatModel, Part, build_model
from rayfl.randomness import Purpose, generator, torch_seed
from rayfl.training.batches import draw_batches
from rayfl.training.evaluation import score_together
from rayfl.training.loop import FlatPull, train

Choice = tuple[np.ndarray, Part]


class Worker:
    """Trains, sums, projects and tests the clients it is asked for."""

    def __init__(self, config: Config, dataset: Dataset, partition: Partition, device: str = "cpu") -> None:
        self.config, self.dataset, self.partition = config, dataset, partition
        self.device = torch.device(device)
        module = build_model(config.model, dataset.input_shape, dataset.classes, dataset.vocabulary, config.seed)
        self.model = FlatModel(module, config.model.head, self.device)
        self.layout = self.model.layout
        self.initial = self.model.numpy()
        self.models: dict[int, np.ndarray] = {}  # the latest model of each client trained here
        self.kept: set[int] = set()  # whose models outlive the round
        self._sums: dict[int, ExactSum] = {}  # of kept models, by cluster
        self._counted: dict[int, int] = {}  # client -> the cluster whose sum it is in

    def train(
        self,
        stacks: list[np.ndarray],
        round_number: int,
        clients: np.ndarray,
        start: Choice | None,
        pulls: list[tuple[np.ndarray, Part, float]],
        keep: bool,
    ) -> None:
        """Train clients; see Federation.train. `stacks` holds the start's models, then each pull's."""
        for client in [c for c in self.models if c not in self.kept]:
            del self.models[client]
        pull_stacks = stacks[1:] if start is not None else stacks
        lr = self.config.local.lr * self.config.local.lr_decay ** (round_number - 1)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            for at, client in enumerate(map(int, clients)):
                try:
                    self._load_start(client, None if start is None else (stacks[0], start[0][at], start[1]))
                    targets = [
                        self._pull(stack[choice[at]], part, strength)
                        for stack, (choice, part, strength) in zip(pull_stacks, pulls, strict=True)
                        if choice[at] >= 0
                    ]
                    torch.manual_seed(torch_seed(self.config.seed, Purpose.DROPOUT, round_number, client))
                    train(self.model, self._batches(client, round_number), self.config.local, lr, targets)
                except DivergedError:
                    raise
                except Exception:
                    raise ClientError(
                        f"client {client} failed in round {round_number}:\n{traceback.format_exc()}"
                    ) from None
                self._store(client, keep)

    def sums(
        self, _: Any, clients: np.ndarray, clusters: np.ndarray, weights: np.ndarray, bits: int, part: Part
    ) -> dict[int, np.ndarray]:
        """Return the exact weighted sum of these clients' models per cluster."""
        where = slice(0, self.layout.size) if part == "all" else self.layout.part(part)
        sums: dict[int, ExactSum] = {}
        for client, cluster, weight in zip(clients.tolist(), clusters.tolist(), weights.tolist(), strict=True):
            vector = self._model_of(client)[where]
            sums.setdefault(cluster, ExactSum(vector.size, bits)).add(vector, weight)
        return {cluster: s.total for cluster, s in sums.items()}

    def kept_sums(self, _: Any, clients: np.ndarray, clusters: np.ndarray, bits: int) -> dict[int, np.ndarray]:
        """Return the exact sum of kept models per cluster, correcting the last sums by who trained or moved."""
        wanted = dict(zip(clients.tolist(), clusters.tolist(), strict=True))
        for client, cluster in list(self._counted.items()):
            if wanted.get(client) != cluster:
                self._uncount(client)
        for client, cluster in wanted.items():
            if client not in self._counted:
                self._sums.setdefault(cluster, ExactSum(self.layout.size, bits)).add(self.models[client])
                self._counted[client] = cluster
        for cluster in self._sums.keys() - set(wanted.values()):
            del self._sums[cluster]
        return {cluster: s.total for cluster, s in self._sums.items()}

    def project(self, low_rank: LowRankMap, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return M (w - w_0) and ||w - w_0||^2 of each client's parameters w."""
        vectors = [self._model_of(c)[: self.layout.parameters] for c in clients.tolist()]
        initial = self.initial[: self.layout.parameters]
        distances = [float(np.square(v - initial, dtype=np.float64).sum()) for v in vectors]
        return project_all(low_rank, vectors, initial), np.array(distances)

    def collect(self, _: Any, clients: np.ndarray) -> np.ndarray:
        """Return the parameters of each client's model, stacked."""
        return np.stack([self._model_of(c)[: self.layout.parameters] for c in clients.tolist()])

    def evaluate(
        self, stacks: list[np.ndarray], own: list[int], groups: list[tuple[int, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Test clients with their own models, and groups of clients with a handed one (-1: the initial model)."""
        clients: list[int] = []
        scores: list[tuple[float, float, float]] = []
        for client in map(int, own):
            self.model.load(self._model_of(client))
            clients.append(client)
            scores += score_together(self.model, [self._test_set(client)], self.dataset.classes)
        for model, members in groups:
            self.model.load(self.initial if model < 0 else stacks[0][model])
            clients += members.tolist()
            scores += score_together(self.model, [self._test_set(c) for c in members.tolist()], self.dataset.classes)
        return np.array(clients), np.array(scores).T

    # -- inside -----------------------------------------------------------------------------------------------

    def _model_of(self, client: int) -> np.ndarray:
        return self.models.get(client, self.initial)

    def _load_start(self, client: int, start: tuple[np.ndarray, int, Part] | None) -> None:
        self.model.load(self._model_of(client) if client in self.kept else self.initial)
        if start is None or start[1] < 0:
            return
        stack, row, part = start
        if part == "all":
            self.model.load(stack[row])
        else:
            where = self.layout.part(part)
            self.model.vector[where] = torch.tensor(stack[row][where], device=self.device)

    def _pull(self, model: np.ndarray, part: Part, strength: float) -> FlatPull:
        where = self.layout.part(part)
        # torch.tensor copies: a view of a shared array would let an in-place operation change it for all readers.
        return FlatPull(torch.tensor(model[where], device=self.device), strength, where)

    def _store(self, client: int, keep: bool) -> None:
        if client in self._counted:
            self._uncount(client)  # its old model leaves the sums before it is overwritten
        self.models[client] = self.model.numpy()
        if keep:
            self.kept.add(client)
        else:
            self.kept.discard(client)

    def _uncount(self, client: int) -> None:
        self._sums[self._counted.pop(client)].subtract(self.models[client])

    def _batches(self, client: int, round_number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        indices = self.partition.train_of(client)
        transform = self.partition.transform_for(client)
        rng = generator(self.config.seed, Purpose.BATCHES, round_number, client)
        for batch in draw_batches(rng, len(indices), self.config.local):
            inputs, labels = self.dataset.batch(indices[batch], transform)
            yield inputs.to(self.device), labels.to(self.device)

    def _test_set(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = self.dataset.batch(self.partition.test_of(client), self.partition.transform_for(client))
        return inputs.to(self.device), labels.to(self.device)
