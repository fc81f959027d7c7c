"""Which client holds which models on which worker, and which worker does what. Plain bookkeeping: no worker is called.

Everything planned here that can affect results is the same for any number of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rayfl.client.handed import Models, Overlay, Personal
from rayfl.client.orders import Source, Task
from rayfl.client.passes import plan_groups
from rayfl.errors import InputError
from rayfl.models import Layout


@dataclass
class Slot:
    """Where the clients' latest models of one slot are, and which parts of them the server has received."""

    where: np.ndarray  # (m,) the worker that holds the client's model, -1 for none
    kept: np.ndarray  # (m,) whether the client keeps the model after the round
    unsent: np.ndarray  # (m, tensors) whether a tensor has not yet been uploaded


@dataclass(frozen=True)
class FederationState:
    """What the server knows about its clients between two rounds: who holds which models, and what was uploaded."""

    kept: dict[str, np.ndarray]  # by slot, the clients that keep a model
    unsent: dict[str, np.ndarray]  # by slot, for these clients, the tensors not yet uploaded


class Places:
    """The places of all clients' models."""

    def __init__(self, clients: int, layout: Layout, workers: int) -> None:
        self.workers = workers
        self.home = np.full(clients, -1)  # the worker that holds what a client keeps
        self.changed_in = np.zeros(clients, np.int64)  # the last round that changed what a client keeps
        self._clients, self._layout = clients, layout
        self._slots: dict[str, Slot] = {}

    def slot(self, name: str) -> Slot:
        """Return the bookkeeping of a slot; it is created at the first request."""
        if name not in self._slots:
            m = self._clients
            unsent = np.zeros((m, len(self._layout.names)), bool)
            self._slots[name] = Slot(np.full(m, -1), np.zeros(m, bool), unsent)
        return self._slots[name]

    def begin_round(self) -> None:
        """Forget the places of models that are not kept."""
        for slot in self._slots.values():
            slot.where[~slot.kept] = -1

    def forget(self) -> None:
        """Go back to the start: no client has a model."""
        self.home[:] = -1
        self._slots.clear()

    def drop(self, clients: np.ndarray, slots: Sequence[str]) -> None:
        """Forget slots in which only these clients have anything; a client that keeps nothing else then has no home."""
        for name in slots:
            self._slots.pop(name, None)
        kept = [slot.kept[clients] for slot in self._slots.values()]
        self.home[clients[~np.any(kept, axis=0)] if kept else clients] = -1

    def note_trained(
        self, slot: str, shares: Mapping[int, np.ndarray], keep: bool, momentum: str | None, round: int
    ) -> None:
        """Record where clients were just trained, whether they keep the model, and the slot of kept momentum."""
        state = self.slot(slot)
        state.where[~state.kept] = -1  # models that are not kept are dropped at the next training
        for worker, clients in shares.items():
            state.where[clients] = worker
            state.kept[clients] = keep
            state.unsent[clients] = True
            if momentum is not None:
                self.slot(momentum).where[clients] = worker
                self.slot(momentum).kept[clients] = True
            if keep or momentum is not None:
                self.home[clients] = worker
                self.changed_in[clients] = round

    def note_kept(self, name: str, clients: np.ndarray, worker: int, round: int) -> None:
        """Record that these clients keep a new vector on this worker."""
        slot = self.slot(name)
        slot.where[clients], slot.kept[clients], slot.unsent[clients] = worker, True, True
        self.home[clients], self.changed_in[clients] = worker, round

    def split_by_cost(self, cohort: np.ndarray, cost: np.ndarray, bound: bool = True) -> dict[int, np.ndarray]:
        """Assign clients to workers, the most expensive first.

        With `bound`, a client that keeps a model stays on its worker, unless that worker would finish later than
        another one by more than the client's cost: then the client moves, because sending a model takes less time than
        training it.
        """
        load = np.zeros(self.workers)
        shares: list[list[int]] = [[] for _ in range(self.workers)]
        at_home = (self.home[cohort] >= 0) & bound
        for client in cohort[at_home]:
            shares[self.home[client]].append(client)
            load[self.home[client]] += cost[client]
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

    def split_by_place(self, clients: np.ndarray, slot: str) -> dict[int, np.ndarray]:
        """Return, for each worker, the positions in `clients` of the clients whose latest model it holds."""
        place = self.slot(slot).where[clients]
        if (place < 0).any():
            raise ValueError(f"clients {clients[place < 0].tolist()} have no model in slot {slot!r} to work on")
        return {int(w): np.flatnonzero(place == w) for w in np.unique(place)}

    def moves_to(self, shares: Mapping[int, np.ndarray]) -> list[tuple[int, int, int]]:
        """Return the moves (client, old worker, new worker) that bring each client to the worker of its share."""
        return [
            (int(client), int(self.home[client]), worker)
            for worker, clients in shares.items()
            for client in clients
            if self.home[client] not in (-1, worker)
        ]

    def note_moved(self, client: int, old: int, new: int) -> None:
        """Record that a client has moved, with everything that it keeps."""
        self.home[client] = new
        for slot in self._slots.values():
            if slot.where[client] == old:
                slot.where[client] = new

    def plan_evaluation(
        self, parts: Sequence[Models | Personal | Overlay], sizes: np.ndarray
    ) -> tuple[list[Task], list[tuple[Task, int]]]:
        """Return tasks (a source for each part, clients) that any worker can do, and tasks bound to one worker.

        Clients that are tested with the same models share a task. A client that is tested with its own model is a
        separate task, on the worker that holds this model. The tasks are the same for any number of workers. `sizes`
        are the numbers of samples that clients are tested on; clients without samples are left out.
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

    def _rows_and_places(self, part: Models | Personal | Overlay) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's row of the part's stack, and the worker that holds its own model (-1: it is not used).

        If the part covers all layers, the client's own model is not used, so clients with the same row share passes.
        """
        if isinstance(part, Models):
            return part.choice, np.full(self._clients, -1)
        if isinstance(part, Personal):
            return np.full(self._clients, -1), self.slot(part.slot).where
        covered = (part.models.choice >= 0) & self._layout.covers(part.models.part)
        return part.models.choice, np.where(covered, -1, self.slot(part.own.slot).where)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state(self) -> FederationState:
        """Return the state that is needed to continue from here, except the clients' models."""
        kept = {name: np.flatnonzero(slot.kept) for name, slot in self._slots.items() if slot.kept.any()}
        unsent = {name: self._slots[name].unsent[clients] for name, clients in kept.items()}
        return FederationState(kept, unsent)

    def changed_since(self, number: int) -> np.ndarray:
        """Return the clients whose kept models have changed after round `number`."""
        keeps = np.zeros(self._clients, bool)
        for slot in self._slots.values():
            keeps |= slot.kept
        return np.flatnonzero(keeps & (self.changed_in > number))

    def restore(self, state: FederationState, number: int) -> None:
        """Go back to the state after round `number`; clients are on no worker until they are adopted."""
        self.forget()
        self.changed_in[:] = number
        for name, clients in state.kept.items():
            slot = self.slot(name)
            slot.kept[clients] = True
            slot.unsent[clients] = state.unsent[name]

    def note_adopted(self, client: int, worker: int, slots: Sequence[str]) -> None:
        """Record that a worker has received what a client kept."""
        self.home[client] = worker
        for name in slots:
            self.slot(name).where[client] = worker

    def refuse_foreign(self, state: FederationState) -> None:
        """Refuse a state that cannot belong to this federation: it has other clients, or another network."""
        faults = [] if state.kept.keys() == state.unsent.keys() else ["unsent"]
        for name, clients in state.kept.items():
            array = isinstance(clients, np.ndarray) and clients.ndim == 1 and clients.dtype.kind == "i"
            numbers = array and len(np.unique(clients)) == len(clients)
            if not numbers or (len(clients) and not 0 <= clients.min() <= clients.max() < self._clients):
                faults.append(name)
        for name in state.kept.keys() & state.unsent.keys():
            unsent = state.unsent[name]
            fits = isinstance(unsent, np.ndarray) and unsent.dtype == bool and name not in faults
            if not fits or unsent.shape != (len(state.kept[name]), len(self._layout.names)):
                faults.append(name)
        if faults:
            raise InputError(
                f"the checkpoint is of other clients or another network (see {', '.join(sorted(set(faults)))}):"
                " restore it from a backup, or start a new run"
            )


def _source(part: Models | Personal | Overlay, row: int, has_own: bool) -> Source:
    """Return the source of one of the models that a client is tested with; see EvaluateOrder."""
    if isinstance(part, Models):
        return row
    if isinstance(part, Personal):
        return part.slot if has_own else -1
    slot = part.own.slot if has_own else None
    return (row, slot) if row >= 0 else -1 if slot is None else slot
