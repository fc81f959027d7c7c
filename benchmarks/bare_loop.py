"""The hand-written loop that rayfl is measured against: two processes, plain PyTorch, models and data in shared memory.

Each process has one thread. Inputs are normalised to float32 once, before the first round. Models are in shared
tensors, and the pipes carry only orders and answers, so that only a few numbers per client are ever serialised. An idle
process blocks on its pipe. The methods do the arithmetic of their papers in the simplest way. Batches are drawn as
rayfl draws them: FedAvg and IFCA then give the same accuracy, which shows that both sides do the same work.
"""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import multiprocessing, nn
from torch.nn.functional import cross_entropy, normalize

CHUNK = 512  # samples per forward pass without a gradient
BATCHES, COHORT = 4, 3  # rayfl's numbers for these random streams
MU, LAMBDA, PULL, COMPONENTS = 1.0, 0.1, 0.1, 50  # FedAC's two pulls, CAM's pull to the centre, FedAC's D


@dataclass(frozen=True)
class Job:
    """The work of all rounds. `train` and `test` hold each client's samples, one client after the other."""

    module: nn.Module  # in its initial state
    head: str
    inputs: torch.Tensor
    labels: torch.Tensor
    classes: int
    train: np.ndarray
    train_offsets: np.ndarray
    test: np.ndarray
    test_offsets: np.ndarray
    cohort: int
    steps: int
    batch: int
    lr: float
    seed: int = 0
    channels_last: bool = False  # of images in memory: makes convolutions faster, but not everyone sets it

    @property
    def clients(self) -> int:
        return len(self.train_offsets) - 1

    def train_of(self, client: int) -> np.ndarray:
        return self.train[self.train_offsets[client] : self.train_offsets[client + 1]]

    def test_of(self, client: int) -> np.ndarray:
        return self.test[self.test_offsets[client] : self.test_offsets[client + 1]]


@dataclass(frozen=True)
class Memory:
    """The tensors that all processes share. Models are flat vectors, parameters first, then batch norm's statistics."""

    centres: torch.Tensor  # (K, size): the clusters' models; FedAvg's global model is the only one
    shared: torch.Tensor  # (size,): FedAC's embedding, CAM's global model
    own: torch.Tensor  # (m, size): the models of clients, if a method needs them
    sums: torch.Tensor  # (processes, K, size): what each process has added up
    shared_sums: torch.Tensor  # (processes, size)
    components: torch.Tensor  # (D, parameters): FedAC's map


@dataclass
class Timing:
    """Where a round's seconds went, and how good the models are after it."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    accuracy: float = 0.0

    @contextmanager
    def clock(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - begin


# -- in each process ---------------------------------------------------------------------------------------------


class Member:
    """One of the processes, with its part of the clients."""

    def __init__(self, rank: int, job: Job, memory: Memory) -> None:
        self.job, self.memory = job, memory
        self.sums, self.shared_sums = memory.sums[rank], memory.shared_sums[rank]
        # Copy the module: it came through shared memory, so all processes have the same tensors.
        order = torch.channels_last if job.channels_last else torch.contiguous_format
        models = [copy.deepcopy(job.module).to(memory_format=order) for _ in range(2 + len(memory.centres))]
        self.model, self.partner, *self.candidates = models
        for fixed in models[1:]:
            fixed.eval()
        self.parameters = list(self.model.parameters())
        self.initial = flat(job.module)
        names = [name for name, _ in self.model.named_parameters()]
        self.backbone = sum(not name.startswith(f"{job.head}.") for name in names)

    def fedavg(self, number: int, clients: Sequence[int], shares: Sequence[float]) -> None:
        self.sums.zero_()
        for client, share in zip(clients, shares, strict=True):
            load(self.model, self.memory.centres[0])
            self._train(number, client)
            self.sums[0].add_(flat(self.model), alpha=share)

    def ifca(self, number: int, clients: Sequence[int], rows: Sequence[int], shares: Sequence[float]) -> None:
        self.sums.zero_()
        for client, row, share in zip(clients, rows, shares, strict=True):
            load(self.model, self.memory.centres[row])
            self._train(number, client)
            self.sums[row].add_(flat(self.model), alpha=share)

    def fedac(self, number: int, clients: Sequence[int], rows: Sequence[int]) -> None:
        """Train personal models with both pulls, and add up their backbones."""
        self.shared_sums.zero_()
        for client, row in zip(clients, rows, strict=True):
            load(self.model, self.memory.own[client])
            pulls = [(LAMBDA, self._split(self.memory.shared)[: self.backbone])]
            if row >= 0:
                pulls.append((MU, self._split(self.memory.centres[row])))
            self._train(number, client, pulls)
            self.memory.own[client] = flat(self.model)
            self.shared_sums.add_(self.memory.own[client])

    def project(self, clients: Sequence[int]) -> np.ndarray:
        width = self.memory.components.shape[1]
        return np.stack(
            [(self.memory.components @ (self.memory.own[c] - self.initial)[:width]).numpy() for c in clients]
        )

    def sum_by_cluster(self, clients: Sequence[int], rows: Sequence[int]) -> None:
        self.sums.zero_()
        for client, row in zip(clients, rows, strict=True):
            self.sums[row].add_(self.memory.own[client])

    def fesem_cam(self, number: int, clients: Sequence[int], rows: Sequence[int], shares: Sequence[float]) -> None:
        """Train the global and the cluster's model, each with the other's logits added."""
        memory = self.memory
        self.shared_sums.zero_()
        for client, row, share in zip(clients, rows, shares, strict=True):
            load(self.model, memory.shared)
            load(self.partner, memory.centres[row])
            self._train(number, client, partner=self.partner)
            self.shared_sums.add_(flat(self.model), alpha=share)
            load(self.model, memory.centres[row])
            load(self.partner, memory.shared)
            self._train(number, client, [(PULL, self._split(memory.centres[row]))], self.partner)
            memory.own[client] = flat(self.model)

    @torch.no_grad()
    def losses(self, clients: Sequence[int]) -> np.ndarray:
        """Return the mean loss of every cluster's model on each client's training data."""
        for candidate, centre in zip(self.candidates, self.memory.centres, strict=True):
            load(candidate, centre)
        found = np.empty((len(clients), len(self.candidates)))
        for at, client in enumerate(clients):
            inputs, labels = self._samples(self.job.train_of(client))
            for row, candidate in enumerate(self.candidates):
                found[at, row] = cross_entropy(forward(candidate, inputs), labels).item()
        return found

    @torch.no_grad()
    def evaluate(self, clients: Sequence[int], rows: Sequence[int], additive: bool) -> np.ndarray:
        """Test each client with the centre of its row, or with its own model if the row is -1.

        Clients with the same centre are tested together.
        """
        if additive:
            load(self.partner, self.memory.shared)
        self.model.eval()
        scores = []
        for row in sorted(set(rows)):
            members = [c for c, r in zip(clients, rows, strict=True) if r == row]
            groups = [[c] for c in members] if row < 0 else [members]
            for group in groups:
                load(self.model, self.memory.own[group[0]] if row < 0 else self.memory.centres[row])
                scores += self._scores(group, additive)
        return np.array(scores)

    def _scores(self, clients: Sequence[int], additive: bool) -> list[tuple[float, ...]]:
        tests = [self.job.test_of(c) for c in clients]
        inputs, labels = self._samples(np.concatenate(tests))
        logits = forward(self.model, inputs)
        if additive:
            logits += forward(self.partner, inputs)
        losses = cross_entropy(logits, labels, reduction="none").numpy()
        true, predicted = labels.numpy(), logits.argmax(1).numpy()
        scores: list[tuple[float, ...]] = []
        end = 0
        for client, test in zip(clients, tests, strict=True):
            part = slice(end, end := end + len(test))
            right = true[part] == predicted[part]
            hits = np.bincount(true[part][right], minlength=self.job.classes)
            both = np.bincount(true[part], minlength=len(hits)) + np.bincount(predicted[part], minlength=len(hits))
            f1 = np.mean(2 * hits[both > 0] / both[both > 0])
            scores.append((client, float(right.mean()), float(f1), float(losses[part].mean())))
        return scores

    def _train(
        self,
        number: int,
        client: int,
        pulls: Sequence[tuple[float, Sequence[torch.Tensor]]] = (),
        partner: nn.Module | None = None,
    ) -> None:
        self.model.train()
        for batch in self._batches(number, client):
            inputs, labels = self._samples(batch)
            logits = self.model(inputs)
            if partner is not None:
                with torch.no_grad():
                    beside = partner(inputs)
                logits = logits + beside
            self.model.zero_grad()
            cross_entropy(logits, labels).backward()
            # By hand: a few per cent faster than torch.optim.SGD on small networks.
            with torch.no_grad():
                for strength, targets in pulls:
                    for parameter, target in zip(self.parameters, targets, strict=False):
                        parameter.grad.add_(parameter - target, alpha=strength)  # type: ignore[union-attr]
                for parameter in self.parameters:
                    parameter.sub_(parameter.grad, alpha=self.job.lr)  # type: ignore[arg-type]

    def _batches(self, number: int, client: int) -> np.ndarray:
        samples = self.job.train_of(client)
        size = min(self.job.batch, len(samples))
        needed = self.job.steps * size
        rng = np.random.default_rng([self.job.seed, BATCHES, number, client])
        order = np.concatenate([rng.permutation(len(samples)) for _ in range(-(-needed // len(samples)))])
        return samples[order[:needed]].reshape(self.job.steps, size)

    def _samples(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(indices)
        return self.job.inputs.index_select(0, chosen), self.job.labels.index_select(0, chosen)

    def _split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the pieces of a flat vector, in the shapes of the parameters."""
        sizes = [p.numel() for p in self.parameters]
        pieces = vector[: sum(sizes)].split(sizes)
        return [piece.view_as(p) for piece, p in zip(pieces, self.parameters, strict=True)]


def state(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1) for t in state(module)])


@torch.no_grad()
def load(module: nn.Module, vector: torch.Tensor) -> None:
    end = 0
    for tensor in state(module):
        tensor.copy_(vector[end : (end := end + tensor.numel())].view_as(tensor))


def forward(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([module(part) for part in inputs.split(CHUNK)])


def work(rank: int, job: Job, memory: Memory, pipe: Connection) -> None:
    torch.set_num_threads(1)
    member = Member(rank, job, memory)
    while (order := pipe.recv()) is not None:
        operation, arguments = order
        pipe.send(getattr(member, operation)(*arguments))


# -- in the parent -----------------------------------------------------------------------------------------------


class BareLoop:
    """The two processes and the server's part of each method."""

    def __init__(self, job: Job, method: str, initial_centres: torch.Tensor, processes: int = 2) -> None:
        self.job = job
        self.round: Callable[[int, np.ndarray, Timing], None] = getattr(self, "_" + method.replace(" + ", "_"))
        size, initial = initial_centres.shape[1], flat(job.module)
        personal = method in ("fedac", "fesem + cam")
        parameters = sum(p.numel() for p in job.module.parameters())
        self.memory = Memory(
            centres=initial_centres.clone(),
            shared=initial.clone(),
            own=initial.repeat(job.clients if personal else 0, 1),
            sums=torch.zeros(processes, len(initial_centres), size),
            shared_sums=torch.zeros(processes, size),
            components=torch.zeros(COMPONENTS if method == "fedac" else 0, parameters),
        )
        for tensor in vars(self.memory).values():
            tensor.share_memory_()
        self.n_train = np.diff(job.train_offsets)
        self.rows = np.full(job.clients, -1)
        self.additive = method == "fesem + cam"
        self.clustered = False  # whether there has been a clustering yet
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.members = []
        for rank in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(rank, job, self.memory, there), daemon=True)
            process.start()
            there.close()  # the pipe then closes if the process dies, and the parent does not wait forever
            self.pipes.append(here)
            self.members.append(process)
        self.pids = [process.pid for process in self.members if process.pid is not None]

    def run_round(self, number: int) -> Timing:
        timing = Timing()
        begin = time.perf_counter()
        rng = np.random.default_rng([self.job.seed, COHORT, number])
        cohort = np.sort(rng.choice(self.job.clients, self.job.cohort, replace=False))
        self.round(number, cohort, timing)
        timing.seconds["server"] = time.perf_counter() - begin - sum(timing.seconds.values())
        return timing

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.members:
            process.join()

    def _fedavg(self, number: int, cohort: np.ndarray, timing: Timing) -> None:
        with timing.clock("training"):
            self._ask("fedavg", cohort, (self._shares(cohort),), number)
        self.memory.centres[0] = self.memory.sums[:, 0].sum(0)
        timing.accuracy = self._evaluate(np.zeros(self.job.clients, np.int64), timing)

    def _ifca(self, number: int, cohort: np.ndarray, timing: Timing) -> None:
        with timing.clock("clients"):
            losses = self._ask("losses", cohort)
        self.rows[cohort] = losses.argmin(axis=1)
        with timing.clock("training"):
            self._ask("ifca", cohort, (self.rows[cohort], self._shares(cohort, self.rows[cohort])), number)
        for row in np.unique(self.rows[cohort]):
            self.memory.centres[row] = self.memory.sums[:, row].sum(0)
        timing.accuracy = self._evaluate(np.maximum(self.rows, 0), timing)

    def _fedac(self, number: int, cohort: np.ndarray, timing: Timing) -> None:
        memory = self.memory
        with timing.clock("training"):
            self._ask("fedac", cohort, (self.rows[cohort],), number)
        memory.shared[:] = memory.shared_sums.sum(0) / len(cohort)
        if not self.clustered:
            self._fit(cohort)
        with timing.clock("clients"):
            sketches = torch.from_numpy(self._ask("project", cohort))
        self.sketches[cohort] = sketches
        self.rows[cohort] = 0
        seen = np.flatnonzero(self.rows >= 0)
        if not self.clustered:
            self.centre_sketches = sketches[: len(memory.centres)].clone()
            self.clustered = True
        similarity = normalize(self.sketches[seen], dim=1) @ normalize(self.centre_sketches, dim=1).T
        self.rows[seen] = similarity.argmax(1).numpy()
        with timing.clock("clients"):
            self._ask("sum_by_cluster", seen, (self.rows[seen],))
        for row, count in zip(*np.unique(self.rows[seen], return_counts=True), strict=True):
            memory.centres[row] = memory.sums[:, row].sum(0) / count
            self.centre_sketches[row] = self.sketches[self.rows == row].mean(0)
        timing.accuracy = self._evaluate(np.full(self.job.clients, -1), timing)
        self._evaluate(np.maximum(self.rows, 0), timing)

    def _fit(self, cohort: np.ndarray) -> None:
        vectors = self.memory.own[cohort, : self.memory.components.shape[1]]
        _, _, components = torch.pca_lowrank(vectors, min(COMPONENTS, len(cohort) - 1))
        self.memory.components[: components.shape[1]] = components.T
        self.sketches = torch.zeros(self.job.clients, COMPONENTS)

    def _fesem_cam(self, number: int, cohort: np.ndarray, timing: Timing) -> None:
        memory = self.memory
        with timing.clock("training"):
            rows = np.maximum(self.rows[cohort], 0)
            self._ask("fesem_cam", cohort, (rows, self._shares(cohort)), number)
        memory.shared[:] = memory.shared_sums.sum(0)
        dense = self._dense()
        points = memory.own[cohort][:, dense].numpy()
        start: Any = memory.centres[:, dense].numpy() if self.clustered else "k-means++"
        self.clustered = True
        found = KMeans(len(memory.centres), init=start, n_init=1, random_state=number).fit(points)
        self.rows[cohort] = found.labels_
        for row in np.unique(found.labels_):
            memory.centres[row] = memory.own[cohort[found.labels_ == row]].mean(0)
        timing.accuracy = self._evaluate(np.maximum(self.rows, 0), timing)

    def _dense(self) -> slice:
        """Return the slice of a flat vector that holds the fully connected layers at the end."""
        sizes = {name: p.numel() for name, p in self.job.module.named_parameters()}
        dense = sum(size for name, size in sizes.items() if name.startswith(("dense", "head")))
        return slice(sum(sizes.values()) - dense, sum(sizes.values()))

    def _shares(self, cohort: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """Return each client's share of its group's training samples."""
        groups = np.zeros(len(cohort), np.int64) if groups is None else groups
        return self.n_train[cohort] / np.bincount(groups, self.n_train[cohort])[groups]

    def _evaluate(self, rows: np.ndarray, timing: Timing) -> float:
        with timing.clock("evaluation"):
            everyone = np.arange(self.job.clients)
            scores = self._ask("evaluate", everyone, (rows,), after=(self.additive,), ordered=False)
        accuracy = np.empty(self.job.clients)
        accuracy[scores[:, 0].astype(np.int64)] = scores[:, 1]
        return float(np.average(accuracy, weights=np.diff(self.job.test_offsets)))

    def _ask(
        self,
        operation: str,
        clients: np.ndarray,
        with_clients: tuple[np.ndarray, ...] = (),
        *first: Any,
        after: tuple[Any, ...] = (),
        ordered: bool = True,
    ) -> Any:
        """Let all processes do their parts in parallel; return the answers, in the order of `clients` if `ordered`."""
        # Assign clients in turn, largest first: all get equally many clients, and nearly equally many samples.
        by_size = np.argsort(-self.n_train[clients], kind="stable")
        places = [by_size[rank :: len(self.pipes)] for rank in range(len(self.pipes))]
        for pipe, at in zip(self.pipes, places, strict=True):
            pipe.send((operation, (*first, clients[at].tolist(), *(a[at].tolist() for a in with_clients), *after)))
        answers = [pipe.recv() for pipe in self.pipes]
        if answers[0] is None:
            return None
        together = np.concatenate(answers)
        if ordered:
            together[np.concatenate(places)] = together.copy()
        return together
