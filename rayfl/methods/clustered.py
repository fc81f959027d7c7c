"""The frame of clustered methods: K centres, who is in which cluster, and the add-ons that go with any of them.

A clustered method says how clients are assigned and how centres move. It trains through `local_training`, weighs
models through `losses` and names what is tested through `tested`; there the add-ons come in:

- `cks` (thesis Eq. 5.6) pulls every client to the mean over all clients; `con` (Eq. 4.3, 4.4) makes it like its own
  centre and unlike the others; `con_cks` (Eq. 6.1) does the first on the backbone and the second on the head.
- `cam` (CAM, section 3) adds a global model: a client's output is the sum of the logits of the global and of its
  cluster's (or its own) model. Both are trained at once, each with the other fixed at the round's start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rayfl.aggregation import damped_mean
from rayfl.clustering import NO_CLUSTER
from rayfl.federation.interface import MODEL, Contrast, Mixture, Models, Own, Pull, Tested, everyone
from rayfl.methods.method import Method
from rayfl.methods.options import ClusteredOptions
from rayfl.models import Part

GLOBAL = "global"
CAM_WARMUP = 30  # of the paper's 100 rounds


@dataclass
class ClusteredState:
    """What the server of a clustered method remembers."""

    centres: np.ndarray  # W (K, size)
    assignment: np.ndarray  # (m,) rows of centres, -1 before a client has taken part
    shared: np.ndarray  # W_g (size,): the mean over all clusters, or CAM's global model


class Clustered(Method):
    """A method with K centres."""

    Options = ClusteredOptions
    options: Any
    state: Any
    #: Whether the method has a warm-up of its own for CAM.
    warms_up: ClassVar[bool] = False

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int) -> list[str]:
        """Refuse a warm-up that would do nothing."""
        if options.cam is not None and options.cam.warmup and not cls.warms_up:
            return [f"method.cam.warmup={options.cam.warmup}: only ifca, fesem and wecfl have a warm-up; leave it out"]
        return []

    def start(self) -> None:
        """Begin with K different models and nobody assigned."""
        centres = self.fed.initial_models(self.first_centres())
        nobody = np.full(self.fed.clients, NO_CLUSTER)
        self.state = ClusteredState(centres, nobody, self.fed.initial)

    def first_centres(self) -> int:
        """How many centres there are at the start."""
        return self.options.clusters

    # -- what the add-ons change --------------------------------------------------------------------------------

    @property
    def additive(self) -> bool:
        """Whether outputs are those of the global and the cluster's model added up."""
        return "cam" in self.options.addons

    @property
    def warming_up(self) -> bool:
        """Whether CAM's warm-up is still going on."""
        return self.fed.round <= self.warmup_rounds

    @property
    def warmup_rounds(self) -> int:
        """How long CAM's warm-up is; 0 without it."""
        if not self.additive:
            return 0
        asked = self.options.cam.warmup
        return (CAM_WARMUP if self.warms_up else 0) if asked is None else asked

    def local_training(
        self, cohort: np.ndarray, start: Models | None = None, pulls: Sequence[Pull] = (), keep: bool = False
    ) -> None:
        """Train the cohort toward its clusters, with the add-ons' terms; then move what all clusters share."""
        options, state = self.options, self.state
        contrasts: list[Contrast] = []
        pulls = list(pulls)
        if "cks" in options.addons or "con_cks" in options.addons:
            piece: Part = "backbone" if "con_cks" in options.addons else "all"
            pulls.append(Pull(everyone(state.shared, self.fed.clients, piece), options.cks.strength))
        if "con" in options.addons or "con_cks" in options.addons:
            own = self.centres()
            on = options.con.on
            if "con_cks" in options.addons:
                own, on = replace(own, part="head"), "parameters"
            contrasts.append(Contrast(own, on, options.con.temperature, options.con.weight))
        if not self.additive:
            self.fed.train(cohort, start, pulls, keep, contrasts=contrasts)
            if pulls or contrasts:
                self._move_shared(cohort, MODEL)
            return
        shared = everyone(state.shared, self.fed.clients)
        # The global model's partner is the cluster's model as it stands before this round's training.
        partner: Models | Own = Own() if keep else (start or self.centres())
        self.fed.train(cohort, start=shared, partner=partner, slot=GLOBAL)
        self.fed.train(cohort, start, pulls, keep, partner=shared, contrasts=contrasts)
        self._move_shared(cohort, GLOBAL)

    def losses(self, clients: np.ndarray, stack: np.ndarray) -> np.ndarray:
        """Return the loss of every model of the stack on each client's training data; with CAM, of the sum (Eq. 2)."""
        partner = everyone(self.state.shared, self.fed.clients) if self.additive else None
        return self.fed.losses(clients, stack, partner)

    def tested(self, models: Models | Own) -> Tested:
        """Return what a client is tested with, given the model of its cluster or its own."""
        if not self.additive:
            return models
        return Mixture((everyone(self.state.shared, self.fed.clients), models), "logits")

    def share_what_was_learnt_alone(self, clients: np.ndarray, slot: str = MODEL) -> None:
        """Let W_g be the mean of models that were trained alone, where CKS will pull to it (thesis Eq. 5.2).

        CAM's global model is trained beside the clusters' from the start, and is not touched.
        """
        if {"cks", "con_cks"} & set(self.options.addons) and not self.additive:
            self._move_shared(clients, slot)

    def _move_shared(self, cohort: np.ndarray, slot: str) -> None:
        """Eq. 9 of CAM: the mean over all clients, by samples."""
        self.state.shared = self.fed.mean(cohort, self.fed.n_train[cohort], slot=slot)

    # -- what most clustered methods do -------------------------------------------------------------------------

    def centres(self) -> Models:
        """Hand each client the centre of its cluster."""
        return Models(self.state.centres, self.state.assignment)

    def recentre(self, cohort: np.ndarray, weighted: bool = True, damped: bool = False) -> None:
        """Move each centre to the mean of this cohort's models in its cluster; one that nobody is in stays.

        Damped (CAM, Eq. 6), a centre moves only by its cluster's share of the cohort's samples.
        """
        state, fed = self.state, self.fed
        rows, count = state.assignment[cohort], len(state.centres)
        weights = fed.n_train[cohort] if weighted else None
        means = fed.mean_by_cluster(cohort, rows, count, weights)
        samples = np.bincount(rows, fed.n_train[cohort], count)
        centres = state.centres.copy()
        for row in np.unique(rows):
            share = samples[row] / samples.sum() if damped else 1.0
            centres[row] = damped_mean(centres[row], means[row], share)
        state.centres = centres

    def tested_models(self) -> Tested:
        """Test everyone with the cluster's model."""
        return self.tested(self.centres())

    def assignment(self) -> np.ndarray:
        """Return each client's cluster."""
        return self.state.assignment
