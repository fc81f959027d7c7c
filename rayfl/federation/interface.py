"""The collective operations a method is written in, with what would travel in a real deployment counted.

Planning, combining and counting happen here, once. A federation adds only how to reach its workers (in this
process, or actors on Ray), so two federations cannot disagree. Results never depend on which worker did what.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfl.aggregation import fraction_bits, mean_of
from rayfl.clustering.similarity import LowRankMap
from rayfl.models import Layout, Part
from rayfl.training.evaluation import Scores, plan_groups

FLOAT_BYTES = 4
SKETCH_BYTES = 8  # sketches travel as float64: they are few, and distances between them are small


@dataclass(frozen=True)
class Models:
    """Models handed to clients: a stack of flat vectors, and which of them each client gets.

    `choice[i]` is the row for client i, -1 for none. `part` limits what is handed over (and what travels).
    """

    stack: np.ndarray
    choice: np.ndarray
    part: Part = "all"


@dataclass(frozen=True)
class Pull:
    """The term strength/2 * ||w - W||^2 of a client's objective, W being the model handed to it, over one part."""

    models: Models
    strength: float


def everyone(model: np.ndarray, clients: int, part: Part = "all") -> Models:
    """Hand the same model to every client."""
    return Models(model[None], np.zeros(clients, np.int32), part)


@dataclass
class Ledger:
    """What a round moved and how long it took."""

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "eval": 0.0})

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `what`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - begin


@dataclass(frozen=True)
class Facts:
    """What the server knows of the federation before it starts."""

    n_train: np.ndarray
    n_test: np.ndarray
    layout: Layout
    initial: np.ndarray


class Federation(ABC):
    """Clients as a method sees them. Clients are numbered from 0; arrays over clients are indexed by that number."""

    def __init__(self, facts: Facts, workers: int) -> None:
        self.n_train, self.n_test = facts.n_train, facts.n_test
        self.layout, self.initial = facts.layout, facts.initial
        self.clients = len(facts.n_train)
        self.round = 0
        self.ledger = Ledger()
        self._workers = workers
        self._where = np.full(self.clients, -1)  # which worker holds the client's latest model
        self._keeps = np.zeros(self.clients, bool)  # whether that model outlives the round
        self._unsent = {"backbone": np.zeros(self.clients, bool), "head": np.zeros(self.clients, bool)}
        self._has_map: tuple[LowRankMap | None, np.ndarray] = (None, np.zeros(self.clients, bool))
        self._shared_map: Any = None

    # -- how a federation reaches its workers -----------------------------------------------------------------

    @abstractmethod
    def _share(self, arrays: Any) -> Any:
        """Put arrays where all workers can read them; the handle goes to `_ask` as its `shared` argument."""

    @abstractmethod
    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        """Call `operation(shared, *arguments)` on each worker named in `shares`, at once; return answers by worker."""

    def close(self) -> None:  # noqa: B027 - actors are released by those who started them
        """Let go of the workers."""

    # -- what a method calls ----------------------------------------------------------------------------------

    def begin_round(self, number: int) -> None:
        """Start a round: a new ledger, and new random streams everywhere."""
        self.round = number
        self.ledger = Ledger()

    def train(
        self, cohort: np.ndarray, start: Models | None = None, pulls: Sequence[Pull] = (), keep: bool = False
    ) -> None:
        """Train the cohort's clients on their own data; the trained models stay where they were trained.

        A client begins from the model it kept (the initial one, if none), with `start` laid over it. With `keep`
        it holds on to the result between rounds.
        """
        pulls = [p for p in pulls if p.strength]
        handed = [m for m in [start, *[p.models for p in pulls]] if m is not None]
        self._count_down(cohort, handed)
        with self.ledger.timed("train"):
            shares = self._split_by_cost(cohort)
            shared = self._share([m.stack for m in handed])
            calls = {}
            for worker, clients in shares.items():
                start_rows = None if start is None else (start.choice[clients], start.part)
                pull_rows = [(p.models.choice[clients], p.models.part, p.strength) for p in pulls]
                calls[worker] = (self.round, clients, start_rows, pull_rows, keep)
            self._ask("train", calls, shared)
        for worker, clients in shares.items():
            self._where[clients] = worker
        self._keeps[cohort] = keep
        for unsent in self._unsent.values():
            unsent[cohort] = True

    def mean(self, clients: np.ndarray, weights: np.ndarray | None = None, part: Part = "all") -> np.ndarray:
        """Return the mean of these clients' latest models, weighted by `weights` (one integer each) or plain.

        With `part`, only that part travels and the rest of the returned vector is zero.
        """
        groups = np.zeros(len(clients), np.int32)
        return self.mean_by_cluster(clients, groups, 1, weights, part)[0]

    def mean_by_cluster(
        self,
        clients: np.ndarray,
        clusters: np.ndarray,
        count: int,
        weights: np.ndarray | None = None,
        part: Part = "all",
    ) -> np.ndarray:
        """Return one mean per cluster (count, size): summed on the workers, so that `count` models travel from each.

        Clusters that nobody is in come back as zeros.
        """
        integer = np.ones(len(clients), np.int64) if weights is None else np.asarray(weights, np.int64)
        totals = np.bincount(clusters, integer, count).astype(np.int64)
        bits = fraction_bits(int(totals.max(initial=1)))
        self._count_up(clients, part)
        shares = self._split_by_place(clients)
        answers = self._ask(
            "sums",
            {w: (clients[at], clusters[at], integer[at], bits, part) for w, at in shares.items()},
        )
        return self._means(answers.values(), count, totals, bits, part)

    def mean_of_kept(self, assignment: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return the plain mean of the models kept by the clients of each of `clusters` (K, size).

        The workers keep their sums from call to call and correct them by what changed, so this costs by the
        number of clients that trained or moved, not by all. Clients in no cluster (-1) do not count.
        """
        clients = np.flatnonzero(self._keeps & (assignment >= 0))
        rows = np.searchsorted(clusters, assignment[clients])
        totals = np.bincount(rows, minlength=len(clusters))
        bits = fraction_bits(self.clients)
        self._count_up(clients, "all")
        shares = self._split_by_place(clients)
        answers = self._ask("kept_sums", {w: (clients[at], assignment[clients[at]], bits) for w, at in shares.items()})
        row_of = {int(cluster): row for row, cluster in enumerate(clusters)}
        sums = [{row_of[cluster]: total for cluster, total in a.items()} for a in answers.values()]
        return self._means(sums, len(clusters), totals, bits, "all")

    def project(self, clients: np.ndarray, low_rank: LowRankMap) -> tuple[np.ndarray, np.ndarray]:
        """Let clients project their latest model: (n, D) sketches M (w - w_0), and each model's ||w - w_0||^2.

        The map travels to a client once, when it is new; D + 1 numbers per client come back.
        """
        known, has = self._has_map
        if known is not low_rank:
            has = np.zeros(self.clients, bool)
            self._shared_map = self._share(low_rank)
        self.ledger.bytes_down += int((~has[clients]).sum()) * low_rank.components.size * FLOAT_BYTES
        has[clients] = True
        self._has_map = (low_rank, has)
        self.ledger.bytes_up += len(clients) * (len(low_rank.components) + 1) * SKETCH_BYTES
        shares = self._split_by_place(clients)
        answers = self._ask("project", {w: (clients[at],) for w, at in shares.items()}, self._shared_map)
        sketches = np.empty((len(clients), len(low_rank.components)))
        distances = np.empty(len(clients))
        for worker, at in shares.items():
            sketches[at], distances[at] = answers[worker]
        return sketches, distances

    def collect(self, clients: np.ndarray) -> np.ndarray:
        """Bring these clients' latest models to the server, parameters only (n, parameters)."""
        self._count_up(clients, "all")
        shares = self._split_by_place(clients)
        answers = self._ask("collect", {w: (clients[at],) for w, at in shares.items()})
        vectors = np.empty((len(clients), self.layout.parameters), np.float32)
        for worker, at in shares.items():
            vectors[at] = answers[worker]
        return vectors

    def evaluate(self, models: Models | None = None) -> Scores:
        """Test every client on its own test set: with the model it is handed, or with the one it keeps.

        A client that is handed none (-1), or keeps none, is tested with the initial model. This is the simulation
        looking on, so it is not counted as traffic.
        """
        with self.ledger.timed("eval"):
            choice = np.full(self.clients, -1) if models is None else models.choice
            own = np.flatnonzero(self._keeps) if models is None else np.array([], int)
            shared = np.setdiff1d(np.arange(self.clients), own, assume_unique=True)
            groups: list[tuple[int, np.ndarray]] = [
                (model, shared[at]) for model, at in plan_groups(choice[shared], self.n_test[shared])
            ]
            calls: dict[int, tuple[list, list]] = {w: ([], []) for w in range(self._workers)}
            for client in own:
                calls[self._where[client]][0].append(client)
            load = [int(self.n_test[c[0]].sum()) for c in calls.values()]
            for group in sorted(groups, key=lambda g: -int(self.n_test[g[1]].sum())):
                worker = int(np.argmin(load))
                calls[worker][1].append(group)
                load[worker] += int(self.n_test[group[1]].sum())
            stack = self._share([] if models is None else [models.stack])
            answers = self._ask("evaluate", {w: c for w, c in calls.items() if c[0] or c[1]}, stack)
            scores = np.full((3, self.clients), np.nan)
            for clients, values in answers.values():
                scores[:, clients] = values
            return Scores(*scores)

    # -- planning and counting --------------------------------------------------------------------------------

    def _split_by_cost(self, cohort: np.ndarray) -> dict[int, np.ndarray]:
        """Deal the cohort over the workers, dearest clients first; who keeps a model goes where that is."""
        load = np.zeros(self._workers)
        shares: dict[int, list[int]] = {w: [] for w in range(self._workers)}
        bound = cohort[self._keeps[cohort]]
        for client in bound:
            shares[self._where[client]].append(client)
            load[self._where[client]] += self.n_train[client]
        free = cohort[~self._keeps[cohort]]
        for client in free[np.argsort(-self.n_train[free], kind="stable")]:
            worker = int(np.argmin(load))
            shares[worker].append(client)
            load[worker] += self.n_train[client]
        return {w: np.array(clients) for w, clients in shares.items() if clients}

    def _split_by_place(self, clients: np.ndarray) -> dict[int, np.ndarray]:
        """Return the positions in `clients` of those whose latest model each worker holds."""
        place = self._where[clients]
        return {int(w): np.flatnonzero(place == w) for w in np.unique(place)}

    def _count_down(self, cohort: np.ndarray, handed: Sequence[Models]) -> None:
        seen = []  # a model that is both start and target of a pull travels once
        for models in handed:
            key = (id(models.stack), models.choice.tobytes(), models.part)
            if key not in seen:
                seen.append(key)
                self.ledger.bytes_down += int((models.choice[cohort] >= 0).sum()) * self._bytes(models.part)

    def _count_up(self, clients: np.ndarray, part: Part) -> None:
        """Count the upload of what the server has not yet got of these clients' latest models."""
        parts: tuple[Part, ...] = ("backbone", "head") if part == "all" else (part,)
        for each in parts:
            unsent = self._unsent[each]
            self.ledger.bytes_up += int(unsent[clients].sum()) * self._bytes(each)
            unsent[clients] = False

    def _bytes(self, part: Part) -> int:
        if part == "all":
            return self._bytes("backbone") + self._bytes("head")
        piece = self.layout.part(part)
        buffers = self.layout.size - self.layout.parameters if part == "backbone" else 0
        return (piece.stop - piece.start + buffers) * FLOAT_BYTES

    def _means(self, sums: Any, count: int, totals: np.ndarray, bits: int, part: Part) -> np.ndarray:
        where = slice(0, self.layout.size) if part == "all" else self.layout.part(part)
        means = np.zeros((count, self.layout.size), np.float32)
        added: dict[int, np.ndarray] = {}
        for answer in sums:
            for cluster, total in answer.items():
                added[cluster] = added[cluster] + total if cluster in added else total
        for cluster, total in added.items():
            means[cluster, where] = mean_of(total, int(totals[cluster]), bits)
        return means
