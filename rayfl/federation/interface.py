"""The collective operations a method is written in, with what would travel in a real deployment counted.

Planning, combining and counting happen here, once. A federation adds only how to reach its workers (in this
process, or actors on Ray), so two federations cannot disagree. Results never depend on which worker did what.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.aggregation import fraction_bits, mean_of
from rayfl.client.handed import MODEL, Each, Mixture, Models, Overlay, Own, Sent, Tested
from rayfl.client.objective import Term
from rayfl.client.orders import EvaluateOrder, Given, MapOrder, TrainOrder
from rayfl.client.passes import Combine, Split
from rayfl.client.store import ClientState
from rayfl.config import ModelConfig
from rayfl.federation.ledger import Ledger
from rayfl.federation.places import FederationState, Places
from rayfl.federation.traffic import Traffic, whole
from rayfl.models import Layout, Part

if TYPE_CHECKING:
    from rayfl.models import FlatModel


def _different_stacks(handed: Sequence[Models]) -> list[np.ndarray]:
    """Return the stacks of models, each array once."""
    return list({id(models.stack): models.stack for models in handed}.values())


def momentum_slot(slot: str, stream: int) -> str:
    """Return the slot in which clients keep the momentum of the trainings of another slot and stream."""
    return f"momentum of {slot}" + (f", stream {stream}" if stream else "")


@dataclass(frozen=True)
class Recipe:
    """What it takes to build the network anew, from another initial state."""

    config: ModelConfig
    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int | None
    seed: int
    channels_last: bool = False

    def build(self, index: int = 0) -> "FlatModel":
        """Return the network in its initial state number `index`."""
        from rayfl.models import FlatModel, build_model  # torch: only where networks are built

        module = build_model(self.config, self.input_shape, self.classes, self.vocabulary, self.seed, index)
        return FlatModel(module, self.config.head, channels_last=self.channels_last)


@dataclass(frozen=True)
class Facts:
    """What the server knows of the federation before it starts."""

    n_train: np.ndarray
    n_test: np.ndarray
    train_cost: np.ndarray  # samples that each client's training of one round takes
    layout: Layout
    initial: np.ndarray
    public: np.ndarray  # samples that the server may look at, without their labels: no client has them
    recipe: Recipe
    n_validation: np.ndarray
    keep_momentum: bool = False  # clients keep their momentum from round to round
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")  # of the task, in the order in which workers report them


class Federation(ABC):
    """Clients as a method sees them. Clients are numbered from 0; arrays over clients are indexed by that number."""

    def __init__(self, facts: Facts, workers: int) -> None:
        self.n_train, self.n_test, self.public = facts.n_train, facts.n_test, facts.public
        self.n_validation, self.metrics = facts.n_validation, facts.metrics
        self._train_cost = facts.train_cost
        self.layout, self.initial = facts.layout, facts.initial
        self.clients = len(facts.n_train)
        self.round = 0
        self._recipe, self._keep_momentum = facts.recipe, facts.keep_momentum
        self._places = Places(self.clients, facts.layout, workers)
        self._traffic = Traffic(facts.layout, facts.train_cost, self._places)

    @property
    def ledger(self) -> Ledger:
        """What this round has cost so far."""
        return self._traffic.ledger

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

    def initial_models(self, count: int, first: int = 0) -> np.ndarray:
        """Return different initial models (count, size), from number `first` on; clients begin with number 0."""
        return self.numbered_initial_models(np.arange(first, first + count))

    def numbered_initial_models(self, numbers: np.ndarray) -> np.ndarray:
        """Return the initial models of these numbers (n, size); the same number always gives the same model."""
        return np.stack([self._recipe.build(int(number)).numpy() for number in numbers])

    def has_model(self, clients: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return which of these clients have a model of their own: one they keep, or one trained this round."""
        return self._places.slot(slot).where[clients] >= 0

    def unsent(self, clients: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return which of these clients have something in their latest model that the server has not got."""
        return self._places.slot(slot).unsent[clients].any(axis=1)

    def forget(self) -> None:
        """Begin again: no client has any model, on any worker."""
        self._ask("forget", dict.fromkeys(range(self._places.workers), ()))
        self._places.forget()

    def begin_round(self, number: int) -> None:
        """Start a round: a new ledger, new random streams everywhere, and only kept models are still there."""
        self.round = number
        self._traffic.new_ledger()
        self._places.begin_round()

    def train(
        self,
        cohort: np.ndarray,
        start: Models | None = None,
        objective: Sequence[Term] = (),
        keep: bool = False,
        *,
        partner: Models | Own | None = None,
        slot: str = MODEL,
        stream: int = 0,
        from_rest: bool = False,
        part: Part = "all",
    ) -> None:
        """Train the cohort's clients on their own data; the trained models stay where they were trained.

        A client begins from the model it kept in this slot (the initial one, if none), with `start` laid over it.
        `objective` are terms that its loss has besides the task's. With `keep` it holds on to the result between
        rounds. `partner` is a fixed model whose outputs are added to the trained one's. `stream` gives other batches
        than those of the round's other trainings. Only the parameters of `part` are trained; statistics of
        normalisation layers follow the batches everywhere.

        With local.keep_momentum, a client goes on with the momentum of its last training of this slot and stream, and
        keeps it, whether or not it keeps the model; `from_rest` does neither. It stays with the client: no traffic.
        """
        terms = [term for term in objective if term.counts]
        handed = [start, partner, *[term.models for term in terms]]
        stacks = _different_stacks([m for m in handed if isinstance(m, Models)])
        momentum = momentum_slot(slot, stream) if self._keep_momentum and not from_rest else None
        self._traffic.training(cohort, start, terms, partner, momentum is not None)
        with self.ledger.timed("train"):
            shares = self._places.split_by_cost(cohort, self._train_cost)
            self._move_to(shares)
            shared = self._share(stacks)

            def given(models: Models, clients: np.ndarray) -> Given:
                row = next(i for i, stack in enumerate(stacks) if stack is models.stack)
                return Given(row, models.choice[clients], models.part)

            def place(models: Models | Own, clients: np.ndarray) -> Given | str:
                return given(models, clients) if isinstance(models, Models) else models.slot

            orders = {
                worker: TrainOrder(
                    round=self.round,
                    clients=clients,
                    slot=slot,
                    stream=stream,
                    keep=keep,
                    part=part,
                    momentum=momentum,
                    start=None if start is None else given(start, clients),
                    terms=[(replace(t, models=None), place(t.models, clients)) for t in terms if t.models is not None],
                    partner=None if partner is None else place(partner, clients),
                )
                for worker, clients in shares.items()
            }
            self._ask("train", {worker: (order,) for worker, order in orders.items()}, shared)
        self._places.note_trained(slot, shares, keep, momentum, self.round)

    def mean(
        self, clients: np.ndarray, weights: np.ndarray | None = None, part: Part = "all", slot: str = MODEL
    ) -> np.ndarray:
        """Return the mean of these clients' latest models, weighted by `weights` (one integer each) or plain.

        With `part`, only that part travels and the rest of the returned vector is zero.
        """
        groups = np.zeros(len(clients), np.int32)
        return self.mean_by_cluster(clients, groups, 1, weights, part, slot)[0]

    def mean_by_cluster(
        self,
        clients: np.ndarray,
        clusters: np.ndarray,
        count: int,
        weights: np.ndarray | None = None,
        part: Part = "all",
        slot: str = MODEL,
    ) -> np.ndarray:
        """Return one mean per cluster (count, size): summed on the workers, so that `count` models travel from each.

        Clusters that nobody is in come back as zeros.
        """
        integer = np.ones(len(clients), np.int64) if weights is None else np.asarray(weights, np.int64)
        totals = np.bincount(clusters, integer, count).astype(np.int64)
        bits = fraction_bits(int(totals.max(initial=1)))
        self._traffic.up(clients, part, slot)
        shares = self._places.split_by_place(clients, slot)
        answers = self._ask(
            "sums",
            {w: (slot, clients[at], clusters[at], integer[at], bits, part) for w, at in shares.items()},
        )
        return self._means(answers.values(), count, totals, bits, part)

    def mean_of_kept(self, assignment: np.ndarray, clusters: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return the plain mean of the models kept by the clients of each of `clusters` (K, size).

        The workers keep their sums from call to call and correct them by what changed, so this costs by the
        number of clients that trained or moved, not by all. Clients in no cluster (-1) do not count.
        """
        clients = np.flatnonzero(self._places.slot(slot).kept & (assignment >= 0))
        rows = np.searchsorted(clusters, assignment[clients])
        totals = np.bincount(rows, minlength=len(clusters))
        bits = fraction_bits(self.clients)
        self._traffic.up(clients, "all", slot)
        shares = self._places.split_by_place(clients, slot)
        answers = self._ask(
            "kept_sums", {w: (slot, clients[at], assignment[clients[at]], bits) for w, at in shares.items()}
        )
        row_of = {int(cluster): row for row, cluster in enumerate(clusters)}
        sums = [{row_of[cluster]: total for cluster, total in a.items()} for a in answers.values()]
        return self._means(sums, len(clusters), totals, bits, "all")

    def collect(self, clients: np.ndarray, part: Part = "all", slot: str = MODEL, buffers: bool = False) -> np.ndarray:
        """Bring these clients' latest models to the server, the parameters of one part (n, numbers of it).

        With `buffers`, whole vectors (n, size), from which models can be made again.
        """
        where = slice(0, self.layout.size) if buffers else self.layout.part(part)
        self._traffic.up(clients, "all" if buffers else part, slot)
        shares = self._places.split_by_place(clients, slot)
        answers = self._ask("collect", {w: (slot, clients[at], where) for w, at in shares.items()})
        vectors = np.empty((len(clients), where.stop - where.start), np.float32)
        for worker, at in shares.items():
            vectors[at] = answers[worker]
        return vectors

    def map(
        self,
        clients: np.ndarray,
        function: Callable[..., Any],
        *arrays: np.ndarray | Each | Sent,
        slot: str | None = MODEL,
        stream: int = 0,
        at_server: bool = False,
        together: bool = False,
        passes: float = 0,
        result_bytes: int | None = None,
    ) -> Any:
        """Run `function(client, *arrays)` on each of these clients; return what it returns, stacked in their order.

        `client` is a rayfl.client.client.Client: its data, models, what it keeps, a seeded generator, the device. The
        function returns an array, a tuple of arrays, or None; arrays of all clients have the same shapes. It is called
        where the client's latest model of `slot` is, or anywhere if that is None. `stream` gives other random numbers
        than the round's other calls. With `together` it is called once for several clients, as a list, and returns a
        row for each: then it is the function that must not let a client's result depend on the others.

        The arrays travel to each client, models once per round, and the results back: `result_bytes` from each client
        if they are not those of the arrays. `passes` over its training samples is what a client computes. With
        `at_server` the function stands for what the server does with whole models that it was sent: then only those
        are counted.
        """
        if len(clients) == 0:
            return None
        orders: dict[int, MapOrder] = {}
        at_home = np.full(len(clients), -1)
        if slot is not None:
            where = self._places.slot(slot).where[clients]
            at_home = np.where(where >= 0, where, self._places.home[clients])
            if at_server and (where < 0).any():
                raise ValueError(f"clients {clients[where < 0].tolist()} have no model in slot {slot!r} to work on")
        self._traffic.map(clients, arrays, at_server, slot or MODEL)
        if passes:
            self.ledger.computed(clients, self.n_train[clients], passes)
        shares = {int(w): clients[at_home == w] for w in np.unique(at_home[at_home >= 0])}
        for worker, who in self._places.split_by_cost(clients[at_home < 0], self.n_train, bound=False).items():
            shares[worker] = np.concatenate([shares[worker], who]) if worker in shares else who
        for worker, who in shares.items():
            rows = [array.rows[who] if isinstance(array, Each) else None for array in arrays]
            orders[worker] = MapOrder(self.round, who, stream, function, rows, together)
        shared = self._share([whole(array) for array in arrays])
        answers = self._ask("map", {worker: (order,) for worker, order in orders.items()}, shared)
        found: dict[int, tuple[np.ndarray, ...]] = {}
        for worker, (results, kept) in answers.items():
            found.update(zip(shares[worker].tolist(), results, strict=True))
            for name, who in kept.items():
                self._places.note_kept(name, np.array(who), worker, self.round)
        each = [found[client] for client in clients.tolist()]
        shapes = {tuple(array.shape for array in results) for results in each}
        if len(shapes) > 1:
            raise ValueError(f"{orders[next(iter(orders))].name} gave arrays of different shapes: {sorted(shapes)[:3]}")
        if not at_server:
            sizes = [sum(array.nbytes for array in results) for results in each]
            self.ledger.up(clients, sum(sizes) if result_bytes is None else len(clients) * result_bytes)
        stacked = tuple(np.stack(arrays) for arrays in zip(*each, strict=True))
        return stacked[0] if len(stacked) == 1 else stacked or None

    def evaluate(self, tested: Tested, split: Split = "test") -> dict[str, np.ndarray]:
        """Return the task's metrics and the loss, by name, of every client on its own test or validation set.

        Who has no samples there gets NaN. A client that is handed none (-1), or has none of its own, is tested with
        the initial model; see also Overlay.
        This is the simulation looking on, so it is not counted as traffic.
        """
        sizes = self.n_test if split == "test" else self.n_validation
        parts = tested.parts if isinstance(tested, Mixture) else (tested,)
        combine: Combine = tested.combine if isinstance(tested, Mixture) else "logits"
        with self.ledger.timed("eval"):
            tasks, bound = self._places.plan_evaluation(parts, sizes)
            load = np.zeros(self._places.workers)
            orders: dict[int, list] = {w: [] for w in range(self._places.workers)}

            def cost(task: tuple) -> int:
                return int(sizes[task[1]].sum())

            for task, worker in [*bound, *[(task, -1) for task in sorted(tasks, key=cost, reverse=True)]]:
                worker = int(np.argmin(load)) if worker < 0 else worker
                orders[worker].append(task)
                load[worker] += cost(task)
            handed = [p.models if isinstance(p, Overlay) else p for p in parts]
            shared = self._share([h.stack if isinstance(h, Models) else None for h in handed])
            laid = tuple(p.models.part if isinstance(p, Overlay) else "all" for p in parts)
            calls = {w: (EvaluateOrder(tasks, combine, laid, split),) for w, tasks in orders.items() if tasks}
            answers = self._ask("evaluate", calls, shared)
            names = (*self.metrics, "loss")
            scores = np.full((len(names), self.clients), np.nan)
            for clients, values in answers.values():
                scores[:, clients] = values
            return dict(zip(names, scores, strict=True))

    def sketches(self, clients: np.ndarray, size: int, slot: str = MODEL) -> np.ndarray:
        """Return `size` numbers per client that stand for how its latest model differs from the initial one.

        Like `evaluate`, this is the simulation looking on, and not counted.
        """
        shares = self._places.split_by_place(clients, slot)
        answers = self._ask("sketches", {w: (slot, clients[at], size) for w, at in shares.items()})
        found = np.empty((len(clients), size))
        for worker, at in shares.items():
            found[at] = answers[worker]
        return found

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state(self) -> FederationState:
        """Return what must be known to go on from here, the clients' models aside."""
        return self._places.state()

    def changed_since(self, number: int) -> np.ndarray:
        """Return the clients whose kept models have changed after round `number`."""
        return self._places.changed_since(number)

    def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]:
        """Return copies of what these clients keep."""
        homes = self._places.home[clients]
        shares = {int(w): (clients[homes == w].tolist(),) for w in np.unique(homes[homes >= 0])}
        answers = self._ask("kept", shares)
        return {client: state for answer in answers.values() for client, state in answer.items()}

    def restore(self, state: FederationState, number: int) -> None:
        """Go back to how things stood after round `number`; `adopt` then brings the clients' models."""
        self._places.refuse_foreign(state)
        self.forget()
        self.round = number
        self._places.restore(state, number)

    def adopt(self, states: Mapping[int, ClientState]) -> None:
        """Give clients back what they kept, spread over the workers."""
        coming: dict[int, dict[int, ClientState]] = {}
        for client, state in states.items():
            worker = client % self._places.workers
            models = {name: vector for name, vector in state.models.items() if self._places.slot(name).kept[client]}
            coming.setdefault(worker, {})[client] = ClientState(models, frozenset(models))
            self._places.note_adopted(client, worker, list(models))
        self._ask("adopt", {worker: (states,) for worker, states in coming.items()})

    def _move_to(self, shares: Mapping[int, np.ndarray]) -> None:
        """Bring what these clients keep to the workers that they are dealt to."""
        moves = self._places.moves_to(shares)
        if not moves:
            return
        leaving: dict[int, list[int]] = {}
        for client, old, _ in moves:
            leaving.setdefault(old, []).append(client)
        given = self._ask("give", {worker: (clients,) for worker, clients in leaving.items()})
        coming: dict[int, dict[int, ClientState]] = {}
        for client, old, new in moves:
            coming.setdefault(new, {})[client] = given[old][client]
            self._places.note_moved(client, old, new)
        self._ask("adopt", {worker: (states,) for worker, states in coming.items()})

    def _means(
        self, sums: Iterable[dict[int, np.ndarray]], count: int, totals: np.ndarray, bits: int, part: Part
    ) -> np.ndarray:
        means = np.zeros((count, self.layout.size), np.float32)
        added: dict[int, np.ndarray] = {}
        for answer in sums:
            for cluster, total in answer.items():
                added[cluster] = added[cluster] + total if cluster in added else total
        for cluster, total in added.items():
            mean = mean_of(total, int(totals[cluster]), bits)
            begin = 0
            for where in self.layout.ranges(part):
                means[cluster, where] = mean[begin : begin + where.stop - where.start]
                begin += where.stop - where.start
        return means
