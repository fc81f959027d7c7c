"""The collective operations that methods are written with. What a real deployment would send is counted here too.

Planning, combining and counting happen here, once. A federation adds only how to reach its workers (in this
process, or actors on Ray), so two federations cannot disagree. Results never depend on which worker did what.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rayfl.aggregation import fraction_bits, mean_of
from rayfl.client.handed import MODEL, Each, EvalModels, Mixture, Models, Overlay, Personal, Sent
from rayfl.client.objective import Term
from rayfl.client.orders import EvaluateOrder, HandedRows, MapOrder, TrainOrder
from rayfl.client.passes import Combine, Split
from rayfl.client.schedules import learning_rate
from rayfl.client.store import ClientState
from rayfl.federation.facts import Facts
from rayfl.federation.ledger import Ledger
from rayfl.federation.places import FederationState, Places
from rayfl.federation.presence import Presence
from rayfl.federation.traffic import Traffic, whole
from rayfl.models import Part


def _different_stacks(handed: Sequence[Models]) -> list[np.ndarray]:
    """Return the stacks of models, each array only once."""
    return list({id(models.stack): models.stack for models in handed}.values())


def momentum_slot(slot: str, stream: int) -> str:
    """Return the name of the slot in which clients keep the momentum of their training in this slot and stream."""
    return f"momentum of {slot}" + (f", stream {stream}" if stream else "")


class Federation(ABC):
    """Clients as a method sees them. Clients are numbered from 0; arrays over clients are indexed by that number."""

    def __init__(self, facts: Facts, workers: int) -> None:
        self.n_train, self.n_test, self.public = facts.n_train, facts.n_test, facts.public
        self.n_validation, self.metrics = facts.n_validation, facts.metrics
        self._train_cost = facts.train_cost
        self.layout, self.initial = facts.layout, facts.initial
        self.clients = len(facts.n_train)
        self.presence = facts.presence or Presence.of_all(self.clients)
        self.round = 0
        self._recipe, self.local = facts.recipe, facts.local
        self._places = Places(self.clients, facts.layout, workers)
        self._traffic = Traffic(facts.layout, facts.train_cost, self._places)

    @property
    def lr(self) -> float:
        """The learning rate of this round; all other settings of local training are in `local`."""
        return learning_rate(self.local, self.round)

    @property
    def present(self) -> np.ndarray:
        """The clients that have arrived by this round. Cohorts are drawn from them."""
        return self.presence.there(self.round)

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
        """Release the workers."""

    # -- what a method calls ----------------------------------------------------------------------------------

    def initial_models(self, count: int, first: int = 0) -> np.ndarray:
        """Return different initial models (count, size), from number `first` on; clients start from number 0."""
        return self.numbered_initial_models(np.arange(first, first + count))

    def numbered_initial_models(self, numbers: np.ndarray) -> np.ndarray:
        """Return the initial models of these numbers (n, size); the same number always gives the same model."""
        return np.stack([self._recipe.build(int(number)).numpy() for number in numbers])

    def has_model(self, clients: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return which of these clients have their own model: one they keep, or one trained this round."""
        return self._places.slot(slot).where[clients] >= 0

    def unsent(self, clients: np.ndarray, slot: str = MODEL) -> np.ndarray:
        """Return which of these clients have parts of their latest model that they have not yet sent to the server."""
        return self._places.slot(slot).unsent[clients].any(axis=1)

    def forget(self) -> None:
        """Go back to the start: no client has a model on any worker."""
        self._ask("forget", dict.fromkeys(range(self._places.workers), ()))
        self._places.forget()

    def drop(self, clients: np.ndarray, slots: Sequence[str]) -> None:
        """Let these clients forget what is in these slots; no other client may have anything in them."""
        self._ask("drop", {worker: (list(slots),) for worker in range(self._places.workers)})
        self._places.drop(clients, slots)

    @contextmanager
    def looking_on(self) -> Iterator[None]:
        """Let the simulation observe clients: what is done inside counts as time for tests, and not as traffic."""
        with self._traffic.not_counted():
            yield

    def begin_round(self, number: int) -> None:
        """Start a round: a new ledger and new random streams; of the clients' models, only the kept ones remain."""
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
        partner: Models | Personal | None = None,
        slot: str = MODEL,
        stream: int = 0,
        from_rest: bool = False,
        part: Part = "all",
    ) -> None:
        """Train the cohort's clients on their own data; the trained models stay where they were trained.

        A client starts from the model it kept in this slot (the initial one if it kept none), overwritten by `start`
        where that is given. The terms of `objective` are added to the task's loss. With `keep`, the client keeps the
        result for later rounds. `partner` is a fixed model whose outputs are added to those of the trained one. Give
        each training of a round its own `stream` if they should see different batches. Only the parameters of `part`
        are trained; the statistics of all normalisation layers still follow the batches.

        With local.keep_momentum, a client continues with the momentum of its last training in this slot and stream, and
        keeps the new momentum, even if it does not keep the model. With `from_rest`, momentum starts at zero and is not
        kept. Momentum stays on the client and causes no traffic.
        """
        terms = [term for term in objective if term.counts]
        handed = [start, partner, *[term.models for term in terms]]
        stacks = _different_stacks([m for m in handed if isinstance(m, Models)])
        momentum = momentum_slot(slot, stream) if self.local.keep_momentum and not from_rest else None
        self._traffic.training(cohort, start, terms, partner, momentum is not None)
        with self.ledger.timed("train"):
            shares = self._places.split_by_cost(cohort, self._train_cost)
            self._move_to(shares)
            shared = self._share(stacks)

            def given(models: Models, clients: np.ndarray) -> HandedRows:
                row = next(i for i, stack in enumerate(stacks) if stack is models.stack)
                return HandedRows(row, models.choice[clients], models.part)

            def place(models: Models | Personal, clients: np.ndarray) -> HandedRows | str:
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
        """Return one mean per cluster (count, size): summed on the workers, so each sends at most `count` models.

        Clusters without clients are returned as zeros.
        """
        if not self.layout.ranges(part):  # such as the backbone of a network that is one layer
            return np.zeros((count, self.layout.size), np.float32)
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

        The workers keep their sums from call to call and only apply the changes, so the cost grows with the number of
        clients that trained or changed cluster, not with all clients. Clients in no cluster (-1) do not count.
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
        """Bring the parameters of one part of these clients' latest models to the server (n, size of the part).

        With `buffers`, return whole vectors (n, size), from which the models can be rebuilt.
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
        """Run `function(client, *arrays)` on each of these clients; return the results, stacked in the clients' order.

        `client` is a rayfl.client.client.Client: its data, models, what it keeps, a seeded generator, the device. The
        function returns an array, a tuple of arrays, or None; the shapes must be the same for all clients. It runs on
        the worker that holds the client's latest model of `slot`, or on any worker if `slot` is None. Give each call of
        a round its own `stream` if they should draw different random numbers. With `together`, the function is called
        once with a list of several clients and returns one row for each; it must then make sure itself that a client's
        result does not depend on the other clients.

        Traffic: the arrays travel to each client (models once per round) and the results travel back. Give
        `result_bytes` if a client would send another number of bytes than its result has. `passes` is how many passes
        over its training samples a client computes. With `at_server`, the function stands for what the server does with
        whole models that clients have sent to it: then only the upload of these models is counted.
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

    def evaluate(
        self, tested: EvalModels, split: Split = "test", clients: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return the task's metrics and the loss, by name, of each client on its own test or validation set.

        By default, all clients that have arrived are tested. Other clients, and clients without samples, get NaN. A
        client that is handed no model (-1), or has no model of its own, is tested with the initial model; see also
        Overlay. Tests serve the simulation only and are not counted as traffic.
        """
        sizes = np.zeros(self.clients, np.int64)
        who = self.present if clients is None else clients
        sizes[who] = (self.n_test if split == "test" else self.n_validation)[who]
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
            calls = {
                w: (EvaluateOrder(tasks, combine, laid, split, self.round),) for w, tasks in orders.items() if tasks
            }
            answers = self._ask("evaluate", calls, shared)
            names = (*self.metrics, "loss")
            scores = np.full((len(names), self.clients), np.nan)
            for members, values in answers.values():
                scores[:, members] = values
            return dict(zip(names, scores, strict=True))

    def sketches(self, clients: np.ndarray, size: int, slot: str = MODEL) -> np.ndarray:
        """Return `size` numbers per client that summarise how its latest model differs from the initial one.

        Like `evaluate`, this serves the simulation only and is not counted as traffic.
        """
        shares = self._places.split_by_place(clients, slot)
        answers = self._ask("sketches", {w: (slot, clients[at], size) for w, at in shares.items()})
        found = np.empty((len(clients), size))
        for worker, at in shares.items():
            found[at] = answers[worker]
        return found

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state(self) -> FederationState:
        """Return the state that is needed to continue from here, except the clients' models."""
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
        """Go back to the state after round `number`; `adopt` then restores the clients' models."""
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
        """Move what these clients keep to the workers that will train them."""
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
