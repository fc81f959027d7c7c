"""What a method is: a server program that talks to its clients through the federation's collective operations."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rayfl.client.handed import EvalModels, Mixture, Models, Overlay, Personal
from rayfl.federation.facts import Facts
from rayfl.federation.interface import Federation
from rayfl.federation.library import losses
from rayfl.methods.options import MethodOptions
from rayfl.randomness import Purpose, generator

FINE_TUNING = 1_000_000  # a stream of batches that no round uses


@dataclass(frozen=True)
class Assigned:
    """How newcomers begin: what they are tested with, and the cluster of each, in their order (-1: none yet)."""

    models: EvalModels
    cluster: np.ndarray | None = None  # None: the method has no clusters


class Method(ABC):
    """Subclass this, give `round` and `eval_models`, and name the class in a config: `method.name: pkg.mod:Class`.

    `self.fed` reaches the clients, `self.options` are the checked options, `self.fed.local` says how clients train, and
    everything else that the server remembers goes into `self.state`, one dataclass.
    """

    #: The method's own options: keys, types, defaults and help in one place.
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    #: The paper that describes the method, for `rayfl methods`.
    paper: ClassVar[str] = ""
    #: Whether the server needs public samples (`self.fed.public`): then partition.public must not be none.
    needs_public: ClassVar[bool] = False

    #: Whether the method needs what only classes have, such as probabilities: then `task` must be a classification.
    needs_classes: ClassVar[bool] = False

    #: The fewest clients that a round needs: participation.dropout leaves at least this many.
    least_cohort: ClassVar[int] = 1

    state: Any

    def __init__(self, options: Any, fed: Federation, seed: int) -> None:
        self.options, self.fed, self.seed = options, fed, seed
        self.start()

    @classmethod
    def settle(cls, options: Any, rounds: int) -> Any:
        """Fill in the options whose default depends on the run, so that the run's config contains them."""
        return options

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int, rounds: int) -> list[str]:
        """Return a line for each thing that this method cannot do with so many clients and rounds, before any work."""
        return []

    @classmethod
    def notes(cls, options: Any, facts: Facts, cohort: int, rounds: int) -> list[str]:
        """Return a line for each thing that a user should know about such a run before it starts."""
        return []

    @classmethod
    def server_models(cls, options: Any, clients: int) -> int:
        """Return how many models the server holds at once, for an estimate of its memory."""
        return getattr(options, "clusters", 1)

    def start(self) -> None:  # noqa: B027 - a method without server state has nothing to start
        """Set up `self.state` before the first round."""

    @abstractmethod
    def round(self, cohort: np.ndarray) -> None:
        """Run one round with these clients."""

    @abstractmethod
    def eval_models(self) -> EvalModels:
        """Return what each client is tested with: models handed to it, its `Personal`, an `Overlay`, or a `Mixture`."""

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Return more models to test; their accuracy is reported as `<name>_accuracy` in extras."""
        return {}

    def assignment(self) -> np.ndarray | None:
        """Return each client's cluster (-1: none yet), or None for a method without clusters."""
        return None

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Say where clients that have just arrived belong, and what they are tested with before they train.

        By default, a newcomer belongs to the cluster whose model has the least loss on its training data. With one
        cluster or none, or if clients are tested with their own models, there is nothing to choose. A method that keeps
        an assignment in its state also stores the newcomers' clusters there, unless clients count only once they have
        taken part.
        """
        tested, assignment, fed = self.eval_models(), self.assignment(), self.fed
        handed = tested.models if isinstance(tested, Overlay) else tested
        if assignment is None or not isinstance(handed, Models):
            return Assigned(tested, None if assignment is None else assignment[clients])
        others = np.setdiff1d(fed.present, clients)
        others = others[(assignment[others] >= 0) & (handed.choice[others] >= 0)]
        clusters, first = np.unique(assignment[others], return_index=True)
        if not len(clusters):
            return Assigned(tested, assignment[clients])
        rows = handed.choice[others[first]]
        found = np.zeros(len(clients), np.int64)
        if len(clusters) > 1:
            stack = np.tile(fed.initial, (len(rows), 1))
            for where in fed.layout.ranges(handed.part):
                stack[:, where] = handed.stack[rows][:, where]
            found = losses(fed, clients, stack).argmin(axis=1)
        choice = handed.choice.copy()
        choice[clients] = rows[found]
        models = replace(handed, choice=choice)
        return Assigned(replace(tested, models=models) if isinstance(tested, Overlay) else models, clusters[found])

    def own_or_given(self, own: Personal, given: Models) -> Personal | Overlay:
        """Return the clients' own models, and for newcomers that wait for their first round the `given` models."""
        fed = self.fed
        late = fed.present[fed.presence.arrives[fed.present] > 1]
        waiting = late[~fed.has_model(late, own.slot) & (given.choice[late] >= 0)]
        if not len(waiting):
            return own
        choice = np.full(fed.clients, -1)
        choice[waiting] = given.choice[waiting]
        return Overlay(replace(given, choice=choice), own)

    def cluster_statistics(self) -> Mapping[str, np.ndarray]:
        """Return `intra`, `inter` and `granularity` of each cluster in use, in the order of their numbers."""
        return {}

    def rng(self) -> np.random.Generator:
        """Return this round's random numbers for the server."""
        return generator(self.seed, Purpose.CLUSTERING, self.fed.round)

    @property
    def tuned_together(self) -> bool:
        """Whether two models whose logits are added are fine-tuned together, or each alone."""
        return True

    def fine_tune(self) -> EvalModels:
        """Train each client that is there once more, from what it is tested with, and return what to test afterwards.

        In a mixture, each part is trained with the other one fixed, so that the sum is still a sum (thesis 7.4.4).
        Models that were trained apart are also fine-tuned apart. Momentum starts at zero, even if clients keep it from
        round to round.
        """
        tested, clients = self.eval_models(), self.fed.present
        parts = tested.parts if isinstance(tested, Mixture) else (tested,)
        if isinstance(tested, Mixture) and (tested.combine != "logits" or len(parts) != 2):
            raise ValueError("only single models and sums of two can be fine-tuned")
        tuned = []
        for number, part in enumerate(parts):
            start = part.models if isinstance(part, Overlay) else part if isinstance(part, Models) else None
            own = part.own if isinstance(part, Overlay) else part if isinstance(part, Personal) else None
            slot = f"fine-tuned {number}" if own is None else own.slot
            partner = parts[1 - number] if len(parts) == 2 and self.tuned_together else None
            if isinstance(partner, Overlay):
                raise ValueError("a sum with an overlay cannot be fine-tuned")
            self.fed.train(clients, start, keep=True, partner=partner, slot=slot, stream=FINE_TUNING, from_rest=True)
            tuned.append(Personal(slot))
        return Mixture(tuple(tuned), "logits") if len(parts) == 2 else tuned[0]

    def extras(self) -> Mapping[str, Any]:
        """Return what only this method reports."""
        return {}
