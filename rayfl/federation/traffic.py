"""The costs of every operation, for the ledger: what a real deployment would send, and what clients compute."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rayfl.client.handed import Each, Models, Personal, Sent
from rayfl.client.objective import Term
from rayfl.federation.ledger import FORWARD, TRAINING, Ledger
from rayfl.federation.places import Places
from rayfl.models import Layout, Part

FLOAT_BYTES = 4


class Traffic:
    """Counts the costs of operations, round by round."""

    def __init__(self, layout: Layout, train_cost: np.ndarray, places: Places) -> None:
        self._layout, self._train_cost, self._places = layout, train_cost, places
        self.ledger = self.new_ledger()

    def new_ledger(self) -> Ledger:
        """Begin a round."""
        self.ledger = Ledger(self._train_cost, self._tensor_bytes())
        return self.ledger

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """Do not count what is done inside, except its time, which counts as testing."""
        counted = self.ledger
        self.new_ledger()
        try:
            yield
        finally:
            counted.seconds["eval"] += sum(self.ledger.seconds.values())
            self.ledger = counted

    def training(
        self,
        cohort: np.ndarray,
        start: Models | None,
        terms: Sequence[Term],
        partner: Models | Personal | None,
        keeps_momentum: bool,
    ) -> None:
        """Count the costs of a training: models sent to clients, parts that clients hold, passes over samples."""
        ledger, everything = self.ledger, self._tensors_in("all")
        for models in [start, partner, *[term.models for term in terms if not term.all_models]]:
            if isinstance(models, Models):
                self.down(cohort, models)
        for term in terms:  # a contrastive term needs the models of all clusters, so clients receive all of them
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

    def down(self, cohort: np.ndarray, models: Models) -> None:
        """Count the models sent to the cohort, except what a client has already received in this round."""
        rows, pieces = models.choice[cohort], self._tensors_in(models.part)
        if not models.travels:
            return
        for row in np.unique(rows[rows >= 0]):
            self.ledger.down(models.stack[row], cohort[rows == row], pieces)

    def up(self, clients: np.ndarray, part: Part, slot: str) -> None:
        """Count the upload of those parts of the clients' latest models that the server does not have yet."""
        unsent, layers = self._places.slot(slot).unsent, self._tensors_in(part)
        missing = unsent[clients] & layers
        self.ledger.up(clients[missing.any(axis=1)], int(missing.sum(axis=0) @ self._tensor_bytes()))
        unsent[clients] &= ~layers

    def map(self, clients: np.ndarray, arrays: Sequence[np.ndarray | Each | Sent], at_server: bool, slot: str) -> None:
        """Count what a call of `map` sends to clients, or with `at_server` the models that clients must send for it."""
        if at_server:
            self.up(clients, "all", slot)
            return
        everything = self._tensors_in("all")
        for given in arrays:
            if isinstance(given, Sent):
                self.ledger.down_bytes(clients, given.bytes, given.new)
                continue
            array = whole(given)
            models = array.dtype == np.float32 and array.shape[-1:] == (self._layout.size,)
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

    def _tensor_bytes(self) -> np.ndarray:
        """Return the size of each tensor of a model. Traffic is counted by tensors, since a part may split a layer."""
        return np.array([where.stop - where.start for where in self._layout.slices]) * FLOAT_BYTES

    def _tensors_in(self, part: Part) -> np.ndarray:
        """Return which tensors of a model travel with a part."""
        return np.array(self._layout.tensors_in(part))


def whole(given: np.ndarray | Each | Sent) -> Any:
    """Return the value that is shared with all workers, for one argument of `map`."""
    return given.array if isinstance(given, Each) else given.value if isinstance(given, Sent) else given


def _models_in(term: Term) -> int:
    """Return how many models a term has for each client."""
    return len(term.models.stack) if term.all_models and isinstance(term.models, Models) else 1
