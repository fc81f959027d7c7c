"""The worker: hosts many clients, with their data in shared memory and their models in its own.

The same class runs in the driver's process and inside a Ray actor; it does not know which.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rayfl.aggregation import ExactSum
from rayfl.client.augmentation import Augmentation
from rayfl.client.batches import draw_batches, largest_batch
from rayfl.client.bound import Bound, Partner
from rayfl.client.choice import try_together
from rayfl.client.client import Client
from rayfl.client.evaluation import score_together
from rayfl.client.loop import train_alone
from rayfl.client.orders import EvaluateOrder, MapOrder, Source, TrainOrder
from rayfl.client.schedules import learning_rate
from rayfl.client.seen import SeenInputs
from rayfl.client.store import ClientState, ClientStates
from rayfl.client.task import find_task
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import train_together
from rayfl.clustering import count_sketch
from rayfl.config import Config
from rayfl.data import Dataset, Partition, Transform
from rayfl.errors import ClientError
from rayfl.models import FlatModel, Part, build_model
from rayfl.models.zoo import wants_channels_last
from rayfl.own_code import told_as
from rayfl.randomness import Purpose, generator, global_generators_kept, torch_seed

Batch = tuple[torch.Tensor, torch.Tensor]

#: The number of clients that the vectorised trainer gets in one call. It limits memory and changes no bit of a result.
TOGETHER = 32

BLOCK_BYTES = 2**22


class Worker:
    """Trains, sums, projects and tests the clients it is asked for."""

    def __init__(self, config: Config, dataset: Dataset, partition: Partition, device: str = "cpu") -> None:
        self.config, self.dataset, self.partition = config, dataset, partition
        self.task = find_task(config.task)
        self.device = torch.device(device)
        module = build_model(config.model, dataset.input_shape, dataset.classes, dataset.vocabulary, config.seed)
        last = wants_channels_last(config.model, config.training)
        self.model = FlatModel(module, config.model.head, self.device, last)
        self.layout = self.model.layout
        # The vectorised trainer fills every batch up to this size: no client has more samples, so more would be waste.
        size = largest_batch(partition.n_train, config.local)
        self._local = config.local.model_copy(update={"batch_size": size})
        self.initial = self.model.numpy()
        self.states = ClientStates(self.layout.size, config.state.memory_mb * 2**20, config.state.dir)
        self._seen = SeenInputs(dataset, partition)
        self._sums: dict[str, dict[int, ExactSum]] = {}  # of kept models, by slot and cluster
        self._counted: dict[str, dict[int, int]] = {}  # by slot: client -> the cluster whose sum has its model

    def try_together(self, _: Any) -> str | None:
        """Return why the vectorised trainer does not work on this worker's device; None if it does."""
        return try_together(self.model, self.dataset, self.partition.n_train, self.config.local, self.task)

    def forget(self, _: Any) -> None:
        """Drop every client's models, as at the start."""
        self.states.clear()
        self._sums.clear()
        self._counted.clear()

    def drop(self, _: Any, slots: list[str]) -> None:
        """Drop every client's models in these slots."""
        for slot in slots:
            self.states.drop(slot)

    def give(self, _: Any, clients: list[int]) -> dict[int, ClientState]:
        """Return these clients' states and drop them: the clients move to another worker."""
        for slot, counted in self._counted.items():
            for client in [c for c in clients if c in counted]:
                self._uncount(slot, client)
        states = self.states.take(clients)
        self.states.remove(clients)
        return states

    def kept(self, _: Any, clients: list[int]) -> dict[int, ClientState]:
        """Return copies of the models that these clients keep."""
        return self.states.take(clients, kept_only=True)

    def adopt(self, _: Any, states: dict[int, ClientState]) -> None:
        """Receive clients from another worker or from a checkpoint."""
        self.states.restore(states)

    def train(self, stacks: list[np.ndarray], order: TrainOrder) -> None:
        """Train clients; see Federation.train."""
        self.states.drop_unkept(order.slot)
        size = TOGETHER if self.config.training == "vectorised" else 1
        with global_generators_kept([self.device] if self.device.type == "cuda" else []):
            for begin in range(0, len(order.clients), size):
                self._train(stacks, order, range(begin, min(begin + size, len(order.clients))))

    def _train(self, stacks: list[np.ndarray], order: TrainOrder, places: range) -> None:
        """Train the clients at these positions of an order, one or several at once."""
        local = self._local
        lr = learning_rate(local, order.round)
        clients = [int(order.clients[at]) for at in places]
        names = ", ".join(map(self.partition.label_of, clients))
        names = f"client {names}" if len(clients) == 1 else f"one of the clients {names}"
        with told_as(ClientError, f"{names} failed in round {order.round}"):
            whole: dict[int, torch.Tensor] = {}  # stacks that clients get as a whole: one copy for all clients
            each = zip(places, clients, strict=True)
            jobs = [self._job(stacks, order, at, client, whole) for at, client in each]
            if self.config.training == "vectorised":
                vectors = train_together(self.model, jobs, local, lr, self.task)
            else:
                vectors = [train_alone(self.model, job, local, lr, self.task) for job in jobs]
        for client, vector, job in zip(clients, vectors, jobs, strict=True):
            self.store(order.slot, client, vector.cpu().numpy(), order.keep)
            if order.momentum is not None and job.velocity is not None:
                momentum = np.zeros(self.layout.size, np.float32)  # the size of a model; buffers have no momentum
                momentum[: self.layout.parameters] = job.velocity.cpu().numpy()
                self.states.put(order.momentum, client, momentum, keep=True)

    def sums(
        self, _: Any, slot: str, clients: np.ndarray, clusters: np.ndarray, weights: np.ndarray, bits: int, part: Part
    ) -> dict[int, np.ndarray]:
        """Return the exact weighted sum of these clients' models per cluster."""
        ranges = self.layout.ranges(part)
        sums: dict[int, ExactSum] = {}
        for client, cluster, weight in zip(clients.tolist(), clusters.tolist(), weights.tolist(), strict=True):
            vector = self.model_of(slot, client)
            piece = vector[ranges[0]] if len(ranges) == 1 else np.concatenate([vector[r] for r in ranges])
            sums.setdefault(cluster, ExactSum(piece.size, bits)).add(piece, weight)
        return {cluster: s.total for cluster, s in sums.items()}

    def kept_sums(
        self, _: Any, slot: str, clients: np.ndarray, clusters: np.ndarray, bits: int
    ) -> dict[int, np.ndarray]:
        """Return the exact sum of kept models per cluster.

        These are the last sums, updated for clients that trained or changed cluster.
        """
        sums, counted = self._sums.setdefault(slot, {}), self._counted.setdefault(slot, {})
        wanted = dict(zip(clients.tolist(), clusters.tolist(), strict=True))
        for client, cluster in list(counted.items()):
            if wanted.get(client) != cluster:
                self._uncount(slot, client)
        for client, cluster in wanted.items():
            if client not in counted:
                sums.setdefault(cluster, ExactSum(self.layout.size, bits)).add(self.model_of(slot, client))
                counted[client] = cluster
        for cluster in sums.keys() - set(wanted.values()):
            del sums[cluster]
        return {cluster: s.total for cluster, s in sums.items()}

    def collect(self, _: Any, slot: str, clients: np.ndarray, where: slice) -> np.ndarray:
        """Return a piece of each client's model, stacked."""
        return np.stack([self.model_of(slot, c)[where] for c in clients.tolist()])

    def sketches(self, _: Any, slot: str, clients: np.ndarray, size: int) -> np.ndarray:
        """Return a sketch of how each client's model differs from the initial one (n, size)."""
        parameters = slice(0, self.layout.parameters)
        initial = self.initial[parameters]
        return np.stack([count_sketch(self.model_of(slot, c)[parameters] - initial, size) for c in clients.tolist()])

    def map(self, arrays: Sequence[Any], order: MapOrder) -> tuple[list[tuple[np.ndarray, ...]], dict[str, list[int]]]:
        """Run a function on clients; return each client's results, and which clients keep what. See Federation.map."""
        clients = [Client(self, number, order.round, order.stream) for number in order.clients.tolist()]
        if order.together:
            with told_as(ClientError, f"clients failed in round {order.round}, in {order.name}"):
                found = order.function(clients, *arrays)
            results = list(zip(*[np.array(each) for each in _several(found)], strict=True))
        else:
            results = []
            for at, client in enumerate(clients):
                given = [_row(*pair, at) for pair in zip(arrays, order.rows, strict=True)]
                with told_as(
                    ClientError,
                    f"client {self.partition.label_of(client.number)} failed in round {order.round}, in {order.name}",
                ):
                    results.append(tuple(np.array(each) for each in _several(order.function(client, *given))))
        kept: dict[str, list[int]] = {}
        for client in clients:
            for name in client.newly_kept:
                kept.setdefault(name, []).append(client.number)
        return results, kept

    def evaluate(self, stacks: list[np.ndarray | None], order: EvaluateOrder) -> tuple[np.ndarray, np.ndarray]:
        """Test the clients of each task together; return the clients, and a row per metric and one for the loss."""
        samples_of = self.partition.test_of if order.split == "test" else self.partition.validation_of
        clients: list[int] = []
        scores: list[tuple[float, ...]] = []
        for sources, members in order.tasks:
            models = [self._found(stack, s, int(members[0])) for stack, s in zip(stacks, sources, strict=True)]
            below, given = models[0]
            self.model.load(below)
            if given is not None:
                self.model.load(given, self.layout.ranges(order.laid[0]))
            others = [self._overlaid(*model, part) for model, part in zip(models[1:], order.laid[1:], strict=True)]
            tests = [self.samples(c, samples_of(c), order.round) for c in members.tolist()]
            clients += members.tolist()
            scores += score_together(self.model, tests, others, order.combine, self.task)
        return np.array(clients), np.array(scores).T

    # -- inside -----------------------------------------------------------------------------------------------

    def model_of(self, slot: str, client: int) -> np.ndarray:
        """Return a client's latest model in a slot, the initial model if there is none. Do not write to it."""
        found = self.states.get(slot, client)
        return self.initial if found is None else found

    def _found(self, stack: np.ndarray | None, source: Source, client: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the model that a source names, and the model whose part is put over it, if any."""
        if isinstance(source, str):
            return self.model_of(source, client), None
        if isinstance(source, tuple):
            row, slot = source
            below = self.initial if slot is None else self.model_of(slot, client)
            return below, None if stack is None else stack[row]
        return (self.initial if source < 0 or stack is None else stack[source]), None

    def _overlaid(self, below: np.ndarray, given: np.ndarray | None, part: Part) -> torch.Tensor:
        """Return a copy of a model in which one part is replaced by that of another model."""
        vector = torch.tensor(below, device=self.device)
        if given is not None:
            for where in self.layout.ranges(part):
                vector[where] = torch.tensor(given[where], device=self.device)
        return vector

    def _job(
        self, stacks: list[np.ndarray], order: TrainOrder, at: int, client: int, whole: dict[int, torch.Tensor]
    ) -> TrainingJob:
        """Collect what the client at position `at` of an order needs for its training."""
        keys = (order.round, client, *([order.stream] if order.stream else []))
        return TrainingJob(
            start=self._start(stacks, order, at, client),
            batches=self._batches(client, keys),
            seed=torch_seed(self.config.seed, Purpose.DROPOUT, *keys),
            terms=self._terms(stacks, order, at, client, whole),
            partner=self._partner(stacks, order, at, client),
            velocity=self._velocity(order, client),
            trained=None if order.part == "all" else self.layout.trainable(order.part),
        )

    def _velocity(self, order: TrainOrder, client: int) -> torch.Tensor | None:
        if order.momentum is None:
            return None
        kept = self.states.get(order.momentum, client)
        if kept is None:
            return torch.zeros_like(self.model.gradient)
        return torch.tensor(kept[: self.layout.parameters], device=self.device)

    def _start(self, stacks: list[np.ndarray], order: TrainOrder, at: int, client: int) -> torch.Tensor:
        own = self.model_of(order.slot, client) if self.states.is_kept(order.slot, client) else self.initial
        if order.start is None or order.start.rows[at] < 0:
            return self._overlaid(own, None, "all")
        return self._overlaid(own, stacks[order.start.stack][order.start.rows[at]], order.start.part)

    def _partner(self, stacks: list[np.ndarray], order: TrainOrder, at: int, client: int) -> Partner | None:
        if order.partner is None:
            return None
        if isinstance(order.partner, str):
            return Partner(torch.tensor(self.model_of(order.partner, client), device=self.device))
        if order.partner.rows[at] < 0:
            return None
        return Partner(torch.tensor(stacks[order.partner.stack][order.partner.rows[at]], device=self.device))

    def _terms(
        self, stacks: list[np.ndarray], order: TrainOrder, at: int, client: int, whole: dict[int, torch.Tensor]
    ) -> list[Bound]:
        """Return the terms of a client's objective with their models; leave out terms without a model for it."""
        bound: list[Bound] = []
        for term, given in order.terms:
            if isinstance(given, str):
                kept = self.states.get(given, client)
                if kept is not None:
                    bound.append(Bound(term, torch.tensor(kept, device=self.device)[None]))
                continue
            row = int(given.rows[at])
            if row < 0:
                continue
            # torch.tensor copies: with a view, an in-place operation would change the shared array for all readers.
            if term.all_models:
                if given.stack not in whole:
                    whole[given.stack] = torch.tensor(stacks[given.stack], device=self.device)
                bound.append(Bound(term, whole[given.stack], row, given.part))
            else:
                vector = torch.tensor(stacks[given.stack][row], device=self.device)
                bound.append(Bound(term, vector[None], part=given.part))
        return bound

    def store(self, slot: str, client: int, vector: np.ndarray, keep: bool) -> None:
        """Store a client's new model in place of the old one."""
        if client in self._counted.get(slot, {}):
            self._uncount(slot, client)  # subtract the old model from the sums before it is overwritten
        self.states.put(slot, client, vector, keep)

    def _uncount(self, slot: str, client: int) -> None:
        self._sums[slot][self._counted[slot].pop(client)].subtract(self.model_of(slot, client))

    def _batches(self, client: int, keys: tuple[int, ...]) -> Iterator[Batch]:
        """Yield the batches of a client's round; make several at a time, because each call for samples takes time.

        The first of `keys` is the round.
        """
        indices = self.partition.train_of(client)
        drawn = draw_batches(generator(self.config.seed, Purpose.BATCHES, *keys), len(indices), self.config.local)
        sample_bytes = 4 * int(np.prod(self.dataset.input_shape))
        steps = max(1, BLOCK_BYTES // (sample_bytes * self._local.batch_size))
        augmentation = self._augmentation(keys, sum(len(batch) for batch in drawn))
        done = 0
        for begin in range(0, len(drawn), steps):
            block = drawn[begin : begin + steps]
            inputs, labels = self.samples(client, indices[np.concatenate(block)], keys[0])
            if augmentation is not None:
                inputs = augmentation.apply(inputs, done)
            done += len(labels)
            sizes = [len(batch) for batch in block]
            yield from zip(inputs.split(sizes), labels.split(sizes), strict=True)

    def _augmentation(self, keys: tuple[int, ...], samples: int) -> Augmentation | None:
        """Return the augmentation of the images in a client's round, if there is one."""
        local = self._local
        if not local.augment:
            return None
        rng = generator(self.config.seed, Purpose.AUGMENTATION, *keys)
        return Augmentation(local.augment, local.crop_padding, rng, samples, self.dataset.shift)

    def samples(self, client: int, indices: np.ndarray, round: int = 0) -> Batch:
        """Return samples as a client sees them in a round, on this worker's device."""

        def seen(samples: np.ndarray, transform: Transform) -> np.ndarray:
            return self._seen.inputs(client, samples, transform)

        inputs, labels = self.dataset.batch(indices, self.partition.transform_for(client, round), seen)
        return inputs.to(self.device), labels.to(self.device)


def _row(array: Any, rows: np.ndarray | None, at: int) -> Any:
    """Return what the client at this position gets of an array: all of it, its row, or None if the row is negative."""
    return array if rows is None else None if rows[at] < 0 else array[rows[at]]


def _several(found: Any) -> tuple:
    return () if found is None else found if isinstance(found, tuple) else (found,)
