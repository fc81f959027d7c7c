"""The server: picks each round's cohort, lets the method run, tests the models, and records what happened.

Knows the federation's interface and the method, not Ray and not files.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayfl.analysis.truth import adjusted_rand, misclustering, normalised_mutual_information
from rayfl.client.store import ClientState
from rayfl.clustering import NO_CLUSTER
from rayfl.config import Config
from rayfl.data import Change, clusters_at
from rayfl.errors import InputError, LostError, MethodError
from rayfl.federation import EvalModels, Mixture, Models, Overlay
from rayfl.federation.interface import Federation
from rayfl.federation.places import FederationState
from rayfl.federation.presence import AFTER_TRAINING
from rayfl.methods import Method, create_method
from rayfl.models import Layout, Part
from rayfl.own_code import reason, told_as
from rayfl.packing import Packed, foreign, pack, refuse_other_shapes, unpack
from rayfl.simulation.cohorts import draw_cohort, survives
from rayfl.simulation.final_models import DescribedModels, ModelsOfServer
from rayfl.simulation.newcomers import Newcomers, assign_and_test

Columns = dict[str, Any]
Scores = dict[str, np.ndarray]  # by metric, of all clients


@dataclass(frozen=True)
class RoundRecord:
    """The results of one round: columns for the tables, and `extras`."""

    number: int
    summary: Columns
    clients: Columns
    clusters: Columns | None
    extras: dict[str, Any]
    sketches: Columns | None = None  # if output.sketches asks for them
    newcomers: Columns | None = None  # in the round in which they arrive
    warnings: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """Return a number of this round, a column of `rounds` or a key of `extras`; None if the round has none."""
        value = self.summary.get(name, self.extras.get(name))
        return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Snapshot:
    """All that a server knows between two rounds, as plain data; what clients keep is saved separately, in pieces.

    No state of a random generator is needed: random numbers are derived from the seed and the number of the round.
    """

    round: int
    method: Packed
    federation: Packed


def _is_part(layout: Layout, part: Part) -> bool:
    try:
        layout.tensors_in(part)
    except ValueError:
        return False
    return True


def _weighted(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean over the clients that have this measure, weighted or plain; NaN if none has."""
    there = ~np.isnan(values) if weights is None else ~np.isnan(values) & (weights > 0)
    if not there.any():
        return float("nan")
    return float(np.average(values[there], weights=None if weights is None else weights[there]))


def _spread(accuracy: np.ndarray) -> Columns:
    """Return how much the clients' accuracies differ: the standard deviation, and the mean of the worst tenth."""
    found = np.sort(accuracy[~np.isnan(accuracy)])
    if not len(found):
        return {}
    worst = found[: max(1, len(found) // 10)]
    return {"accuracy_std": float(found.std()), "accuracy_worst10": float(worst.mean())}


def _attributes(method: Method) -> dict[str, object]:
    """Return the attributes of a method, apart from its state, in a form that shows whether they have changed."""
    return {name: _form(value) for name, value in vars(method).items() if name != "state"}


def _form(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return hash(value.tobytes())
    return repr(value) if isinstance(value, str | int | float | list | tuple | dict | set) else id(value)


def _outside_the_state(config: Config, before: dict[str, object], after: dict[str, object]) -> tuple[str, ...]:
    """Return a warning if a round has changed what checkpoints do not save."""
    names = [f"self.{name}" for name, form in after.items() if name not in before or before[name] != form]
    if not names:
        return ()
    return (
        f"method.name={config.method.name} changes {' and '.join(names)} in a round. Checkpoints save only"
        " self.state: if later rounds need the values, keep them there, or they are lost when the run is resumed or an"
        " actor dies",
    )


class Server:
    """Runs the rounds of one run."""

    def __init__(
        self, config: Config, fed: Federation, truth: np.ndarray | None, changes: Sequence[Change] = ()
    ) -> None:
        """`truth` is each client's planted cluster at the start, if there are any; it may change during the run."""
        self.config, self.fed, self.truth, self.changes = config, fed, truth, changes
        with told_as(MethodError, f"method.name={config.method.name} cannot start"):
            self.method = create_method(config, fed)
        self._models = ModelsOfServer(self.method, fed)
        # A user's method may change something in a round that checkpoints do not save. The first round shows it.
        self._first = ":" in config.method.name
        self.snapshot()  # a state that cannot be saved fails now, not hours later

    def run_round(self, number: int) -> RoundRecord:
        """Run round `number`, counted from 1, and return its results."""
        with told_as(MethodError, f"method.name={self.config.method.name} failed in round {number}"):
            if not self._first:
                return self._run_round(number)
            before = _attributes(self.method)
            record = self._run_round(number)
            self._first = False
            return replace(record, warnings=_outside_the_state(self.config, before, _attributes(self.method)))

    def _run_round(self, number: int) -> RoundRecord:
        begin = time.perf_counter()
        self._models.let_go()
        self.fed.begin_round(number)
        newcomers = self._newcomers(self.fed.presence.arriving(number))
        drawn = self._cohort(number)
        cohort, lost = self._without_lost(drawn, number)
        self.method.round(cohort)
        self.fed.ledger.lost(lost)
        sketches = self._sketches(cohort)  # before fine-tuning, which changes the clients' models in the last round
        scores: Scores | None = None
        extras: dict[str, Any] = {"dropped": len(lost)} if self.config.participation.dropout else {}
        main = self.fed.metrics[0]
        if number % self.config.evaluate.every == 0 or number == self.config.rounds:
            tested = self.method.eval_models()
            scores = self.fed.evaluate(tested)
            extras |= self._validation(tested)
            for name, models in self.method.also_tested().items():
                extras[f"{name}_{main}"] = _weighted(self.fed.evaluate(models)[main], self.fed.n_test)
        if number == self.config.rounds and self.method.options.finetune:
            self._models.hold(self.config.output.models)
            tuned = self.fed.evaluate(self.method.fine_tune())
            for name in self.fed.metrics:
                extras[f"finetuned_{name}"] = _weighted(tuned[name], self.fed.n_test)
        if changed := self._changed(number):
            extras["changed"] = changed
        extras |= self.fed.ledger.in_fedavg_units()
        extras.update(self.method.extras())
        record = self._record(number, cohort, scores, extras, time.perf_counter() - begin)
        if number == self.config.rounds and newcomers is None:
            newcomers = self._newcomers(self.fed.presence.arriving(AFTER_TRAINING))
        if newcomers is not None:
            record = replace(record, newcomers=newcomers.rows, extras={**extras, **newcomers.summary(main)})
        return replace(record, sketches=sketches)

    def describe_models(self) -> DescribedModels:
        """Return the models that clients are tested with after the latest round, without the clients' own models."""
        with told_as(MethodError, f"method.name={self.config.method.name} has no models to save"):
            return self._models.described()

    def own_models(self, slot: str, clients: np.ndarray) -> np.ndarray:
        """Return these clients' own models in a slot (n, size)."""
        return self._models.own(slot, clients)

    def snapshot(self) -> Snapshot:
        """Return the server's state after the latest round."""
        state = getattr(self.method, "state", None)
        return Snapshot(self.fed.round, pack(state, "method"), pack(self.fed.state(), "federation"))

    def changed_since(self, number: int) -> np.ndarray:
        """Return the clients whose kept models have changed after round `number`."""
        return self.fed.changed_since(number)

    def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]:
        """Return copies of what these clients keep."""
        return self.fed.kept_states(clients)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a saved state; `adopt` then restores what clients kept."""
        try:
            if hasattr(self.method, "state"):
                state = unpack(snapshot.method, type(self.method.state))
                refuse_other_shapes(state, self.method.state, self.fed.layout.size)
                self.method.state = state
            self.fed.restore(unpack(snapshot.federation, FederationState), snapshot.round)
        except (
            AttributeError,
            IndexError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # a manipulated state can fail in any way
            raise InputError(foreign(reason(error))) from None
        self._refuse_impossible()

    def adopt(self, states: dict[int, ClientState]) -> None:
        """Give clients back what they kept."""
        self.fed.adopt(states)

    def recover(self) -> str:
        """Raise LostError: a server in this process cannot replace its workers, as RayServer can."""
        raise LostError("the workers of this process are gone")

    def close(self) -> None:
        """Close the federation."""
        self.fed.close()

    def _refuse_impossible(self) -> None:
        """Refuse a restored state in which clients would be tested with models that do not exist."""
        try:
            assignment = self.method.assignment()
            tested = [self.method.eval_models(), *self.method.also_tested().values()]
        except Exception:
            return  # a method may need its next round first
        parts = [part for t in tested for part in (t.parts if isinstance(t, Mixture) else (t,))]
        m, size = self.fed.clients, self.fed.layout.size
        good = assignment is None or assignment.shape == (m,)
        for part in parts:
            if isinstance(part, Overlay):
                good = good and _is_part(self.fed.layout, part.models.part)
            models = part.models if isinstance(part, Overlay) else part
            if isinstance(models, Models):
                stack, choice = models.stack, models.choice
                good &= stack.ndim == 2 and stack.shape[1] == size and choice.shape == (m,)
                good = good and bool((choice >= -1).all() and (choice < len(stack)).all())
        if not good:
            raise InputError(foreign("its clusters and models do not fit these clients and this network"))

    def _newcomers(self, clients: np.ndarray) -> Newcomers | None:
        """Let the method assign these clients, and test them; None if no clients arrive."""
        if self.config.arrive is None or not len(clients):
            return None
        return assign_and_test(self.method, clients, self.config.arrive.tune, self._truth())

    def _cohort(self, number: int) -> np.ndarray:
        return draw_cohort(self.config, self.fed.presence, self.fed.n_train, number)

    def _without_lost(self, cohort: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which clients of a cohort complete the round, and which are lost during it."""
        stay = survives(self.config, cohort, self.fed.clients, number, self.method.least_cohort)
        return cohort[stay], cohort[~stay]

    def _changed(self, number: int) -> int:
        """Return how many of the clients that are there have changed in this round."""
        who = [change.clients for change in self.changes if change.round == number]
        return len(np.intersect1d(np.concatenate(who), self.fed.present)) if who else 0

    def _truth(self) -> np.ndarray | None:
        """Return the planted cluster of each client in this round."""
        return None if self.truth is None else clusters_at(self.truth, self.changes, self.fed.round)

    def _validation(self, tested: EvalModels) -> dict[str, float]:
        """Return the metrics on the clients' validation samples, weighted by their number; empty if there are none."""
        sizes = self.fed.n_validation
        if not sizes.any():
            return {}
        scores = self.fed.evaluate(tested, "validation")
        return {f"validation_{name}": _weighted(values, sizes) for name, values in scores.items()}

    def _sketches(self, cohort: np.ndarray) -> Columns | None:
        """Return sketches of the models that clients trained, if they are asked for."""
        size = self.config.output.sketches
        if not size:
            return None
        who = cohort[self.fed.has_model(cohort)]
        found = self.fed.sketches(who, size) if len(who) else np.empty((0, size))
        return {"client": who, "sketch": list(found.astype(np.float32))}

    def _record(
        self, number: int, cohort: np.ndarray, scores: Scores | None, extras: dict[str, Any], seconds: float
    ) -> RoundRecord:
        ledger = self.fed.ledger
        assignment = self.method.assignment()
        if assignment is not None:
            there = np.zeros(self.fed.clients, bool)
            there[self.fed.present] = True
            assignment = np.where(there, assignment, NO_CLUSTER)
            if (assignment < 0).all():
                assignment = None  # no clusters yet
        columns: Columns = {
            "clients_trained": len(cohort),
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            "seconds_train": ledger.seconds["train"],
            "seconds_eval": ledger.seconds["eval"],
            "seconds_server": seconds - ledger.seconds["train"] - ledger.seconds["eval"],
            "seconds_total": seconds,
        }
        if scores is not None:
            columns |= {name: _weighted(values, self.fed.n_test) for name, values in scores.items()}
            columns |= {f"{name}_mean": _weighted(scores[name]) for name in self.fed.metrics}
            if "accuracy" in scores:
                columns |= _spread(scores["accuracy"])
        clusters: Columns | None = None
        if assignment is not None:
            present, sizes = np.unique(assignment[assignment >= 0], return_counts=True)
            columns |= {"clusters": len(present), "largest_share": float(sizes.max() / sizes.sum())}
            truth = self._truth()
            if truth is not None:
                columns |= {
                    "ari": adjusted_rand(truth, assignment),
                    "nmi": normalised_mutual_information(truth, assignment),
                    "misclustering": misclustering(truth, assignment),
                }
            clusters = {"cluster": present, "size": sizes}
            clusters |= self.method.cluster_statistics()
        clients = self._client_columns(cohort, assignment, scores)
        return RoundRecord(number, columns, clients, clusters, extras)

    def _client_columns(self, cohort: np.ndarray, assignment: np.ndarray | None, scores: Scores | None) -> Columns:
        """Return a row for each client that is there if the round was evaluated, else for each client that trained."""
        who = cohort if scores is None else self.fed.present
        columns: Columns = {
            "client": who,
            "trained": np.isin(who, cohort),
            "n_train": self.fed.n_train[who],
            "n_test": self.fed.n_test[who],
        }
        if assignment is not None:
            columns["cluster"] = assignment[who]
        if (truth := self._truth()) is not None:
            columns["true_cluster"] = truth[who]
        if scores is not None:
            columns |= {name: values[who] for name, values in scores.items()}
        return columns
