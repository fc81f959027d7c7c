"""CFL (Sattler et al. 2021; thesis 2.2; SR-FCA section 5): FedAvg, and clusters that split in two when they disagree.

If the updates of a cluster's clients cancel (mean update shorter than `eps1`) while some are still long (longest above
`eps2`), the cluster's model has converged without fitting its clients. The cluster is then split so that the largest
cosine similarity between the two halves is as small as possible. Both halves continue from the cluster's model.

- The mean update weighs clients by samples, as in the paper; `weighted: false` is the plain mean of the authors' code.
- `gamma_max` is the paper's last condition: a split is made only if sqrt((1 - a) / 2) > gamma_max, where a is the
  largest similarity across the split. gamma_max bounds the noise of updates; if the condition fails, the split is not
  sure to be right. The authors' public code leaves this out, and so does the default, since no value fits every
  problem.
- With `clusters` (K), CFL works as in SR-FCA's experiments, without these conditions. After every `warmup` rounds all
  clusters are split, the oldest first, until there are K; then no more are split. SR-FCA's code also starts each half
  from a new random model; here it continues from the cluster's model, as in CFL's own paper.
- A cluster of fewer than four clients is not split (fewer than two, with `clusters`); the authors' code splits three.
- In the paper all clients take part in every round. Otherwise, only the clients that are present are split; an absent
  client chooses the centre with the smallest loss when it comes back.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from rayfl.clustering import bipartition, cosine
from rayfl.config import MOST
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.method import Assigned
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class CFLOptions(ClusteredOptions):
    """Options of CFL."""

    eps1: float = Field(0.4, gt=0, description="split when the mean update is shorter than this")
    eps2: float = Field(1.6, gt=0, description="and the longest is longer than this")
    gamma_max: float | None = Field(
        None, ge=0, lt=1, description="and the root of (1 - largest similarity across) / 2 is above this; none: no gate"
    )
    weighted: bool = Field(True, description="whether the mean update weighs clients by samples")
    warmup: int = Field(10, ge=0, le=MOST, description="rounds before the first split; with clusters, between splits")
    clusters: int | None = Field(
        None,
        ge=1,
        le=MOST_CLUSTERS,
        description="split until there are this many clusters, whatever eps1 and eps2 say [K]",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> "CFLOptions":
        if self.clusters is not None and self.gamma_max is not None:
            raise ValueError(
                f"method.clusters={self.clusters} splits without gates, so method.gamma_max={self.gamma_max} would do"
                " nothing: remove one of them"
            )
        return self


@dataclass
class CFLState(ClusteredState):
    """ClusteredState, and which clients were absent when their cluster was split."""

    undecided: np.ndarray


class CFL(Clustered):
    """Recursive bi-partition on the cosine similarity of updates, gated by their norms."""

    paper = "Sattler et al. 2021; thesis 2.2"
    Options = CFLOptions
    state: CFLState

    @classmethod
    def server_models(cls, options: Any, clients: int) -> int:
        """Return K if it is given; otherwise there is one model at first, and the final number is unknown."""
        return min(options.clusters or 1, clients)

    def start(self) -> None:
        """Begin with everyone in one cluster."""
        m = self.fed.clients
        self.state = CFLState(self.fed.initial[None].copy(), np.zeros(m, np.int64), self.fed.initial, np.zeros(m, bool))

    def round(self, cohort: np.ndarray) -> None:
        """Train, split the clusters that disagree, average."""
        state = self.state
        back = cohort[state.undecided[cohort]]
        if len(back):
            state.assignment[back] = self.losses(back, state.centres).argmin(axis=1)
            state.undecided[back] = False
        self.local_training(cohort, start=self.centres())
        if self._may_split():
            starts = state.centres[state.assignment[cohort], : self.fed.layout.parameters]
            updates = self.fed.collect(cohort) - starts
            for cluster in range(len(state.centres)):
                if self.options.clusters is None or len(state.centres) < self.options.clusters:
                    self._split(cluster, cohort, updates)
        self.recentre(cohort)

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Assign newcomers to the centre with the least loss, as for clients that were absent when a cluster split."""
        self.state.undecided[clients] = False
        return super().assign_newcomers(clients)

    def _may_split(self) -> bool:
        """Whether clusters may be split in this round."""
        wanted, warmup = self.options.clusters, self.options.warmup
        if wanted is None:
            return self.fed.round > warmup
        done = self.fed.round - 1
        return len(self.state.centres) < wanted and done >= warmup and done % max(warmup, 1) == 0

    def _split(self, cluster: int, cohort: np.ndarray, updates: np.ndarray) -> None:
        state = self.state
        present = np.flatnonzero(state.assignment[cohort] == cluster)
        told = self.options.clusters is not None
        if len(present) < (2 if told else 4):  # a client alone in its half would learn from no other
            return
        if not told and not self._disagree(cohort[present], updates[present]):
            return
        points = updates[present].astype(np.float64)
        similarity = cosine(points, points)
        halves = bipartition(similarity)
        if self.options.gamma_max is not None:
            across = similarity[np.ix_(halves == 0, halves == 1)].max()
            if np.sqrt((1 - across) / 2) <= self.options.gamma_max:
                return
        moved = cohort[present[halves == 1]]
        absent = np.setdiff1d(np.flatnonzero(state.assignment == cluster), cohort)
        state.assignment[moved] = len(state.centres)
        state.centres = np.vstack([state.centres, state.centres[cluster]])
        state.undecided[absent] = True

    def _disagree(self, clients: np.ndarray, updates: np.ndarray) -> bool:
        """Return whether these updates cancel while some are still long."""
        weights = self.fed.n_train[clients] if self.options.weighted else np.ones(len(clients))
        mean = np.zeros(updates.shape[1])
        for weight, update in zip(weights / weights.sum(), updates, strict=True):
            mean += weight * update
        longest = np.linalg.norm(updates, axis=1).max()
        return bool(np.linalg.norm(mean) < self.options.eps1 and longest > self.options.eps2)
