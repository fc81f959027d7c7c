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
from rayfl.client.orders import EvaluateOrder, Given, MapOrder, Source, Task, TrainOrder
from rayfl.client.passes import Combine, Split, plan_groups
from rayfl.client.store import ClientState
from rayfl.config import ModelConfig
from rayfl.errors import InputError
from rayfl.federation.ledger import FORWARD, TRAINING, Ledger
from rayfl.models import Layout, Part

if TYPE_CHECKING:
    from rayfl.models import FlatModel

FLOAT_BYTES = 4


def _different_stacks(handed: Sequence[Models]) -> list[np.ndarray]:
    """Return the stacks of models, each array once."""
    return list({id(models.stack): models.stack for models in handed}.values())


def _source(part: Models | Own | Overlay, row: int, has_own: bool) -> Source:
    """Return what a worker needs to know of one part of what a client is tested with; see EvaluateOrder."""
    if isinstance(part, Models):
        return row
    if isinstance(part, Own):
        return part.slot if has_own else -1
    slot = part.own.slot if has_own else None
    return (row, slot) if row >= 0 else -1 if slot is None else slot


def _whole(given: np.ndarray | Each | Sent) -> Any:
    """Return what is shared with all workers of an argument of `map`."""
    return given.array if isinstance(given, Each) else given.value if isinstance(given, Sent) else given


def _models_in(term: Term) -> int:
    """Return how many models a term has for each client."""
    return len(term.models.stack) if term.all_models and isinstance(term.models, Models) else 1


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


@dataclass
class _Slot:
    """Where the latest models of one kind are, and what of them the server has got."""

    where: np.ndarray  # (m,) worker, -1 for none
    kept: np.ndarray  # (m,) whether it outlives the round
    unsent: np.ndarray  # (m, tensors): those not yet uploaded


@dataclass(frozen=True)
class FederationState:
    """What the server knows of its clients between two rounds: who holds which models, and what has travelled."""

    kept: dict[str, np.ndarray]  # by slot, the clients that hold on to a model
    unsent: dict[str, np.ndarray]  # by slot, for these clients, the tensors not yet uploaded


class Federation(ABC):
    """Clients as a method sees them. Clients are numbered from 0; arrays over clients are indexed by that number."""

    def __init__(self, facts: Facts, workers: int) -> None:
        self.n_train, self.n_test, self.public = facts.n_train, facts.n_test, facts.public
        self.n_validation, self.metrics = facts.n_validation, facts.metrics
        self._train_cost = facts.train_cost
        self.layout, self.initial = facts.layout, facts.initial
        self.clients = len(facts.n_train)
        self.round = 0
        self.ledger = Ledger(self._train_cost, self._tensor_bytes())
        self._recipe, self._keep_momentum = facts.recipe, facts.keep_momentum
        self._workers = workers
        self._home = np.full(self.clients, -1)  # the worker that holds what a client keeps
        self._slots: dict[str, _Slot] = {}
        self._changed_in = np.zeros(self.clients, np.int64)  # the round in which what a client keeps last changed

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
        return self._slot(slot).where[clients] >= 0

    def unsent(self, clients: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return which of these clients have something in their latest model that the server has not got."""
        return self._slot(slot).unsent[clients].any(axis=1)

    def forget(self) -> None:
        """Begin anew: no client has any model, on any worker."""
        self._ask("forget", dict.fromkeys(range(self._workers), ()))
        self._home[:] = -1
        self._slots.clear()

    def begin_round(self, number: int) -> None:
        """Start a round: a new ledger, new random streams everywhere, and only kept models are still there."""
        self.round = number
        self.ledger = Ledger(self._train_cost, self._tensor_bytes())
        for slot in self._slots.values():
            slot.where[~slot.kept] = -1

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
        self._count_training(cohort, start, terms, partner, momentum is not None)
        with self.ledger.timed("train"):
            shares = self._split_by_cost(cohort, self._train_cost)
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
        state = self._slot(slot)
        state.where[~state.kept] = -1  # models that nobody keeps are gone with the next training
        for worker, clients in shares.items():
            state.where[clients] = worker
            if momentum is not None:
                self._slot(momentum).where[clients] = worker
            if keep or momentum is not None:
                self._home[clients] = worker
                self._changed_in[clients] = self.round
        state.kept[cohort] = keep
        state.unsent[cohort] = True
        if momentum is not None:
            self._slot(momentum).kept[cohort] = True

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
        self._count_up(clients, part, slot)
        shares = self._split_by_place(clients, slot)
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
        clients = np.flatnonzero(self._slot(slot).kept & (assignment >= 0))
        rows = np.searchsorted(clusters, assignment[clients])
        totals = np.bincount(rows, minlength=len(clusters))
        bits = fraction_bits(self.clients)
        self._count_up(clients, "all", slot)
        shares = self._split_by_place(clients, slot)
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
        self._count_up(clients, "all" if buffers else part, slot)
        shares = self._split_by_place(clients, slot)
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
            where = self._slot(slot).where[clients]
            at_home = np.where(where >= 0, where, self._home[clients])
            if at_server and (where < 0).any():
                raise ValueError(f"clients {clients[where < 0].tolist()} have no model in slot {slot!r} to work on")
        self._count_map(clients, arrays, at_server, slot or MODEL)
        if passes:
            self.ledger.computed(clients, self.n_train[clients], passes)
        shares = {int(w): clients[at_home == w] for w in np.unique(at_home[at_home >= 0])}
        for worker, who in self._split_by_cost(clients[at_home < 0], self.n_train, bound=False).items():
            shares[worker] = np.concatenate([shares[worker], who]) if worker in shares else who
        for worker, who in shares.items():
            rows = [array.rows[who] if isinstance(array, Each) else None for array in arrays]
            orders[worker] = MapOrder(self.round, who, stream, function, rows, together)
        shared = self._share([_whole(array) for array in arrays])
        answers = self._ask("map", {worker: (order,) for worker, order in orders.items()}, shared)
        found: dict[int, tuple[np.ndarray, ...]] = {}
        for worker, (results, kept) in answers.items():
            found.update(zip(shares[worker].tolist(), results, strict=True))
            for name, who in kept.items():
                self._note_kept(name, np.array(who), worker)
        each = [found[client] for client in clients.tolist()]
        shapes = {tuple(array.shape for array in results) for results in each}
        if len(shapes) > 1:
            raise ValueError(f"{orders[next(iter(orders))].name} gave arrays of different shapes: {sorted(shapes)[:3]}")
        if not at_server:
            sizes = [sum(array.nbytes for array in results) for results in each]
            self.ledger.up(clients, sum(sizes) if result_bytes is None else len(clients) * result_bytes)
        stacked = tuple(np.stack(arrays) for arrays in zip(*each, strict=True))
        return stacked[0] if len(stacked) == 1 else stacked or None

    def _note_kept(self, name: str, clients: np.ndarray, worker: int) -> None:
        """Remember that these clients keep something new, on this worker."""
        slot = self._slot(name)
        slot.where[clients], slot.kept[clients], slot.unsent[clients] = worker, True, True
        self._home[clients], self._changed_in[clients] = worker, self.round

    def _count_map(
        self, clients: np.ndarray, arrays: Sequence[np.ndarray | Each | Sent], at_server: bool, slot: str
    ) -> None:
        """Count what a call of `map` sends to clients, or with `at_server` what they had to send."""
        if at_server:
            self._count_up(clients, "all", slot)
            return
        everything = self._tensors_in("all")
        for given in arrays:
            if isinstance(given, Sent):
                self.ledger.down_bytes(clients, given.bytes, given.new)
                continue
            array = _whole(given)
            models = array.dtype == np.float32 and array.shape[-1:] == (self.layout.size,)
            if isinstance(given, Each):
                rows = np.unique(given.rows[clients])
                for row in rows[rows >= 0]:
                    who = clients[given.rows[clients] == row]
                    if models and array.ndim == 2:
                        self.ledger.down(array[row], who, everything)
                    else:
                        self.ledger.down_bytes(who, array[row].nbytes, new=len(who))
            elif models and array.ndim <= 2:
                for model in np.atleast_2d(array):
                    self.ledger.down(model, clients, everything)
            else:
                self.ledger.down_bytes(clients, array.nbytes, new=len(clients))

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
            tasks, bound = self._plan_evaluation(parts, sizes)
            load = np.zeros(self._workers)
            orders: dict[int, list] = {w: [] for w in range(self._workers)}

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

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state(self) -> FederationState:
        """Return what must be known to go on from here, the clients' models aside."""
        kept = {name: np.flatnonzero(slot.kept) for name, slot in self._slots.items() if slot.kept.any()}
        unsent = {name: self._slots[name].unsent[clients] for name, clients in kept.items()}
        return FederationState(kept, unsent)

    def changed_since(self, number: int) -> np.ndarray:
        """Return the clients whose kept models have changed after round `number`."""
        keeps = np.zeros(self.clients, bool)
        for slot in self._slots.values():
            keeps |= slot.kept
        return np.flatnonzero(keeps & (self._changed_in > number))

    def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]:
        """Return copies of what these clients keep."""
        homes = self._home[clients]
        shares = {int(w): (clients[homes == w].tolist(),) for w in np.unique(homes[homes >= 0])}
        answers = self._ask("kept", shares)
        return {client: state for answer in answers.values() for client, state in answer.items()}

    def restore(self, state: FederationState, number: int) -> None:
        """Go back to how things stood after round `number`; `adopt` then brings the clients' models."""
        self._refuse_foreign(state)
        self.forget()
        self.round = number
        self._changed_in[:] = number
        for name, clients in state.kept.items():
            slot = self._slot(name)
            slot.kept[clients] = True
            slot.unsent[clients] = state.unsent[name]

    def _refuse_foreign(self, state: FederationState) -> None:
        """Refuse what cannot be a state of this federation: other clients, or another network."""
        faults = [] if state.kept.keys() == state.unsent.keys() else ["unsent"]
        for name, clients in state.kept.items():
            array = isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype.kind == "i"
            numbers = array and len(np.unique(clients)) == len(clients)
            if not numbers or (len(clients) and not 0 <= clients.min() <= clients.max() < self.clients):
                faults.append(name)
        for name in state.kept.keys() & state.unsent.keys():
            unsent = state.unsent[name]
            fits = isinstance(unsent, np.ndarray) and unsent.dtype == bool and name not in faults
            if not fits or unsent.shape != (len(state.kept[name]), len(self.layout.names)):
                faults.append(name)
        if faults:
            raise InputError(
                f"the checkpoint is not of these clients and this network (see {', '.join(sorted(set(faults)))}):"
                " restore it from a backup, or start a new run"
            )

    def adopt(self, states: Mapping[int, ClientState]) -> None:
        """Give clients back what they kept, spread over the workers."""
        coming: dict[int, dict[int, ClientState]] = {}
        for client, state in states.items():
            worker = client % self._workers
            models = {name: vector for name, vector in state.models.items() if self._slot(name).kept[client]}
            coming.setdefault(worker, {})[client] = ClientState(models, frozenset(models))
            self._home[client] = worker
            for name in models:
                self._slot(name).where[client] = worker
        self._ask("adopt", {worker: (states,) for worker, states in coming.items()})

    # -- planning and counting --------------------------------------------------------------------------------

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            m = self.clients
            unsent = np.zeros((m, len(self.layout.names)), bool)
            self._slots[name] = _Slot(np.full(m, -1), np.zeros(m, bool), unsent)
        return self._slots[name]

    def _split_by_cost(self, cohort: np.ndarray, cost: np.ndarray, bound: bool = True) -> dict[int, np.ndarray]:
        """Deal clients over the workers, dearest first.

        With `bound`, who keeps a model stays where it is, unless one worker would be done later than another by more
        than that client costs: then the client moves, since a model travels faster than it trains.
        """
        load = np.zeros(self._workers)
        shares: list[list[int]] = [[] for _ in range(self._workers)]
        at_home = (self._home[cohort] >= 0) & bound
        for client in cohort[at_home]:
            shares[self._home[client]].append(client)
            load[self._home[client]] += cost[client]
        free = cohort[~at_home]
        for client in free[np.argsort(-cost[free], kind="stable")]:
            worker = int(np.argmin(load))
            shares[worker].append(client)
            load[worker] += cost[client]
        for _ in range(len(cohort)):
            last, first = int(np.argmax(load)), int(np.argmin(load))
            client = min(shares[last], key=lambda c: (cost[c], c), default=-1)
            if client < 0 or load[first] + cost[client] >= load[last]:
                break
            shares[last].remove(client)
            shares[first].append(client)
            load[[last, first]] += np.array([-1, 1]) * cost[client]
        return {w: np.array(clients) for w, clients in enumerate(shares) if clients}

    def _move_to(self, shares: Mapping[int, np.ndarray]) -> None:
        """Bring what these clients keep to the workers that they are dealt to."""
        moves = [
            (int(client), int(self._home[client]), worker)
            for worker, clients in shares.items()
            for client in clients
            if self._home[client] not in (-1, worker)
        ]
        if not moves:
            return
        leaving: dict[int, list[int]] = {}
        for client, old, _ in moves:
            leaving.setdefault(old, []).append(client)
        given = self._ask("give", {worker: (clients,) for worker, clients in leaving.items()})
        coming: dict[int, dict[int, ClientState]] = {}
        for client, old, new in moves:
            coming.setdefault(new, {})[client] = given[old][client]
            self._home[client] = new
            for slot in self._slots.values():
                if slot.where[client] == old:
                    slot.where[client] = new
        self._ask("adopt", {worker: (states,) for worker, states in coming.items()})

    def _split_by_place(self, clients: np.ndarray, slot: str) -> dict[int, np.ndarray]:
        """Return the positions in `clients` of those whose latest model each worker holds."""
        place = self._slot(slot).where[clients]
        if (place < 0).any():
            raise ValueError(f"clients {clients[place < 0].tolist()} have no model in slot {slot!r} to work on")
        return {int(w): np.flatnonzero(place == w) for w in np.unique(place)}

    def _plan_evaluation(
        self, parts: Sequence[Models | Own | Overlay], sizes: np.ndarray
    ) -> tuple[list[Task], list[tuple[Task, int]]]:
        """Return tasks (a source for each part, clients) that any worker can do, and those bound to one.

        Clients that are tested with the same models share a task. Who is tested with a model of its own is a task
        alone, on the worker that holds it. All of it is the same for any number of workers. `sizes` are the samples
        that each client is tested on; who has none is left out.
        """
        choices, places = zip(*[self._rows_and_places(part) for part in parts], strict=True)
        rows, place = np.stack(choices, axis=1), np.max(places, axis=0)

        def sources(client: int) -> tuple[Source, ...]:
            return tuple(
                _source(part, int(row), bool(where[client] >= 0))
                for part, row, where in zip(parts, rows[client], places, strict=True)
            )

        shared = np.flatnonzero((place < 0) & (sizes > 0))
        tasks = []
        if len(shared):
            _, kind = np.unique(rows[shared], axis=0, return_inverse=True)
            for _, at in plan_groups(kind.reshape(-1), sizes[shared]):
                tasks.append((sources(int(shared[at[0]])), shared[at]))
        alone = np.flatnonzero((place >= 0) & (sizes > 0))
        bound = [((sources(client), np.array([client])), int(place[client])) for client in alone.tolist()]
        return tasks, bound

    def _rows_and_places(self, part: Models | Own | Overlay) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's row of the part's stack, and the worker that holds its own model (-1: it is not used).

        Where all layers are shared nothing of one's own is left, so clients with the same row share passes.
        """
        if isinstance(part, Models):
            return part.choice, np.full(self.clients, -1)
        if isinstance(part, Own):
            return np.full(self.clients, -1), self._slot(part.slot).where
        covered = (part.models.choice >= 0) & self.layout.covers(part.models.part)
        return part.models.choice, np.where(covered, -1, self._slot(part.own.slot).where)

    def _count_training(
        self,
        cohort: np.ndarray,
        start: Models | None,
        terms: Sequence[Term],
        partner: Models | Own | None,
        keeps_momentum: bool,
    ) -> None:
        """Count what a training takes: models handed over, the client's own parts, passes over its samples."""
        ledger, everything = self.ledger, self._tensors_in("all")
        for models in [start, partner, *[term.models for term in terms if not term.all_models]]:
            if isinstance(models, Models):
                self._count_down(cohort, models)
        for term in terms:  # a contrast: a client must be unlike the other clusters' models too, and receives all
            if term.all_models and isinstance(term.models, Models):
                for model in term.models.stack:
                    ledger.down(model, cohort, self._tensors_in(term.models.part))
        nobody = np.zeros(len(cohort), bool)
        started = start.choice[cohort] >= 0 if start is not None and start.travels else nobody
        covered = self._tensors_in(start.part) if start is not None else ~everything
        ledger.own(int((~started).sum()), everything)
        ledger.own(int(started.sum()), ~covered)
        ledger.own(len(cohort) if keeps_momentum else 0, everything)
        beside = (partner is not None) + sum(_models_in(term) for term in terms if term.on != "parameters")
        ledger.computed(cohort, self._train_cost[cohort], TRAINING + FORWARD * beside)

    def _count_down(self, cohort: np.ndarray, models: Models) -> None:
        """Count what is handed to the cohort, as far as it was not in this round already."""
        rows, pieces = models.choice[cohort], self._tensors_in(models.part)
        if not models.travels:
            return
        for row in np.unique(rows[rows >= 0]):
            self.ledger.down(models.stack[row], cohort[rows == row], pieces)

    def _count_up(self, clients: np.ndarray, part: Part, slot: str) -> None:
        """Count the upload of what the server has not yet got of these clients' latest models."""
        unsent, layers = self._slot(slot).unsent, self._tensors_in(part)
        missing = unsent[clients] & layers
        self.ledger.up(clients[missing.any(axis=1)], int(missing.sum(axis=0) @ self._tensor_bytes()))
        unsent[clients] &= ~layers

    def _tensor_bytes(self) -> np.ndarray:
        """Return the size of each tensor of a model: layers travel by tensors, since half of one can be shared."""
        return np.array([where.stop - where.start for where in self.layout.slices]) * FLOAT_BYTES

    def _tensors_in(self, part: Part) -> np.ndarray:
        """Return which tensors of a model travel with a part."""
        return np.array(self.layout.tensors_in(part))

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
