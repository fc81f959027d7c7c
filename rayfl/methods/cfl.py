"""CFL (Sattler et al. 2021; thesis 2.2; SR-FCA section 5): FedAvg, and clusters that split in two when they disagree.

A cluster whose clients' updates cancel (mean update shorter than `eps1`) while some are still long (longest above
`eps2`) has converged for no one: it is split so that the largest cosine similarity across the cut is the least. The
paper lets everyone take part. Where not, only those present are split; the absent choose the centre with the least loss
when they come back.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from rayfl.clustering import bipartition, cosine
from rayfl.config import MOST
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import ClusteredOptions


class CFLOptions(ClusteredOptions):
    """Options of CFL."""

    eps1: float = Field(0.4, gt=0, description="split when the mean update is shorter than this")
    eps2: float = Field(1.6, gt=0, description="and the longest is longer than this")
    warmup: int = Field(10, ge=0, le=MOST, description="rounds before the first split")


@dataclass
class CFLState(ClusteredState):
    """And who was absent when its cluster split."""

    undecided: np.ndarray


class CFL(Clustered):
    """Recursive bi-partition on the cosine similarity of updates, gated by their norms."""

    paper = "Sattler et al. 2021; thesis 2.2"
    Options = CFLOptions
    state: CFLState

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
        if self.fed.round > self.options.warmup:
            starts = state.centres[state.assignment[cohort], : self.fed.layout.parameters]
            updates = self.fed.collect(cohort) - starts
            for cluster in range(len(state.centres)):
                self._split(cluster, cohort, updates)
        self.recentre(cohort)

    def _split(self, cluster: int, cohort: np.ndarray, updates: np.ndarray) -> None:
        state = self.state
        present = np.flatnonzero(state.assignment[cohort] == cluster)
        if len(present) < 4:  # a half of one client learns from nobody
            return
        lengths = np.linalg.norm(updates[present], axis=1)
        if np.linalg.norm(updates[present].mean(axis=0)) >= self.options.eps1 or lengths.max() <= self.options.eps2:
            return
        points = updates[present].astype(np.float64)
        halves = bipartition(cosine(points, points))
        moved = cohort[present[halves == 1]]
        absent = np.setdiff1d(np.flatnonzero(state.assignment == cluster), cohort)
        state.assignment[moved] = len(state.centres)
        state.centres = np.vstack([state.centres, state.centres[cluster]])
        state.undecided[absent] = True
