"""SR-FCA (Vardhan, Ghosh and Mazumdar 2024): clusters from pairwise distances, successively refined. K is never given.

ONE_SHOT: everyone trains alone; clients nearer than `threshold` are joined, and connected components of at least
`smallest` clients are the clusters. Then `refinements` times REFINE: train a model per cluster from a fresh start, its
clients' models averaged by the trimmed mean; RECLUSTER each client to the nearest cluster; MERGE clusters that are
nearer than the threshold. Rounds that are left go on training the merged models.

- Distances are cross-losses (Def. 5.1), as mean loss per sample, or L2 between models.
- A client whose component is too small goes to the nearest cluster; the paper's graph would drop it.
- `threshold` left out: the middle of the widest gap between the sorted pairwise distances. The paper tunes it.
- Who was not there for ONE_SHOT joins the centre with the least loss on its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rayfl.aggregation import trimmed_mean
from rayfl.clustering import NO_CLUSTER, components, merge_clusters, squared_distances
from rayfl.config import MOST
from rayfl.federation.interface import Own, Tested
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import ClusteredOptions

ALONE = "alone"


class OneShotOptions(ClusteredOptions):
    """Options of ONE_SHOT."""

    threshold: float | None = Field(None, gt=0, description="distance up to which clients are joined [lambda]")
    smallest: int = Field(2, ge=1, le=MOST, description="clients that make a cluster [t]")
    distance: Literal["cross_loss", "l2"] = Field("cross_loss", description="between models: Def. 5.1, or L2")
    one_shot_rounds: int = Field(10, ge=1, le=MOST, description="rounds of training alone")


class SRFCAOptions(OneShotOptions):
    """Options of SR-FCA."""

    refinements: int = Field(2, ge=0, le=MOST, description="times that the clusters are refined [R]")
    refine_rounds: int = Field(10, ge=1, le=MOST, description="rounds of training in each refinement [T]")
    beta: float = Field(0.1, ge=0, lt=0.5, description="share trimmed at each end of a coordinate")


@dataclass
class SRFCAState(ClusteredState):
    """And what ONE_SHOT found: who was there, their models' losses on each other, the threshold."""

    present: np.ndarray  # (p,) clients
    alone: np.ndarray  # (p, size) their models, trained alone
    losses: np.ndarray  # (p, p): of model j on the data of client i
    threshold: float


class OneShot(Clustered):
    """The first stage, which other methods can begin with."""

    Options = OneShotOptions
    state: SRFCAState

    def start(self) -> None:
        """Begin with nobody in any cluster."""
        size = self.fed.layout.size
        none = np.zeros((0, size), np.float32)
        self.state = SRFCAState(
            none,
            np.full(self.fed.clients, NO_CLUSTER),
            self.fed.initial,
            np.array([], int),
            none,
            np.zeros((0, 0)),
            0.0,
        )

    @property
    def alone(self) -> bool:
        """Whether everyone still trains alone."""
        return self.fed.round < self.options.one_shot_rounds

    def one_shot(self, cohort: np.ndarray) -> None:
        """Train alone; in the last of these rounds, find the clusters."""
        state, fed = self.state, self.fed
        fed.train(cohort, keep=True, slot=ALONE)
        if self.alone:
            return
        state.present = np.flatnonzero(fed.has_model(np.arange(fed.clients), ALONE))
        state.alone = fed.collect(state.present, slot=ALONE, buffers=True)
        state.losses = fed.losses(state.present, state.alone)
        distances = self._between_models(state.alone, state.losses)
        state.threshold = self.options.threshold or widest_gap(distances)
        found = components(distances, state.threshold, self.options.smallest)
        state.assignment[state.present] = found
        count, samples = int(found.max()) + 1, fed.n_train[state.present]
        state.centres = fed.mean_by_cluster(state.present, found, count, samples, slot=ALONE)
        self.share_what_was_learnt_alone(state.present, ALONE)

    def join(self, cohort: np.ndarray) -> None:
        """Give those who missed ONE_SHOT to the centre with the least loss."""
        late = cohort[self.state.assignment[cohort] == NO_CLUSTER]
        if len(late):
            self.state.assignment[late] = self.losses(late, self.state.centres).argmin(axis=1)

    def _between_models(self, models: np.ndarray, losses: np.ndarray) -> np.ndarray:
        if self.options.distance == "l2":
            return np.sqrt(squared_distances(models[:, : self.fed.layout.parameters]))
        distances = (losses + losses.T) / 2
        np.fill_diagonal(distances, 0.0)
        return distances

    def tested_models(self) -> Tested:
        """Test with the own model while alone, then with the cluster's."""
        return Own(ALONE) if self.alone else self.tested(self.centres())

    def extras(self) -> Mapping[str, Any]:
        """Return the threshold, once there is one."""
        return {"threshold": self.state.threshold} if self.state.threshold else {}


class SRFCA(OneShot):
    """Successive refinement of clusters from pairwise distances."""

    paper = "Vardhan et al. 2024"
    Options = SRFCAOptions

    def round(self, cohort: np.ndarray) -> None:
        """ONE_SHOT, then REFINE so many times, then go on."""
        options, state = self.options, self.state
        if self.fed.round <= options.one_shot_rounds:
            self.one_shot(cohort)
            return
        self.join(cohort)
        refinement, step = divmod(self.fed.round - options.one_shot_rounds - 1, options.refine_rounds)
        refining = refinement < options.refinements
        if refining and step == 0:
            state.centres = np.repeat(self.fed.initial[None], len(state.centres), axis=0)
        self.local_training(cohort, start=self.centres())
        self._trimmed_recentre(cohort)
        if refining and step == options.refine_rounds - 1:
            self._recluster_and_merge()

    def _trimmed_recentre(self, cohort: np.ndarray) -> None:
        """TrimmedMeanGD (Algorithm 3) with local steps."""
        state = self.state
        vectors, rows = self.fed.collect(cohort, buffers=True), state.assignment[cohort]
        centres = state.centres.copy()
        for row in np.unique(rows):
            centres[row] = trimmed_mean(vectors[rows == row], self.options.beta)
        state.centres = centres

    def _recluster_and_merge(self) -> None:
        """RECLUSTER (Algorithm 2) and MERGE (Algorithm 4)."""
        state, fed = self.state, self.fed
        present, rows = state.present, state.assignment[state.present]
        count, samples = len(state.centres), fed.n_train[state.present]
        parameters = fed.layout.parameters
        if self.options.distance == "l2":
            points = np.vstack([state.alone[:, :parameters], state.centres[:, :parameters]])
            distances = np.sqrt(squared_distances(points))
            to_centres, between = distances[: len(present), len(present) :], distances[len(present) :, len(present) :]
        else:
            on_clients = fed.losses(present, state.centres)  # f_i(w_c)
            member = (rows[:, None] == np.arange(count)) * samples[:, None]
            member = member / np.maximum(member.sum(axis=0), 1)
            of_cluster = state.losses.T @ member  # f_c(w_i): a cluster's loss is the mean over its clients' samples
            to_centres = (on_clients + of_cluster) / 2
            cross = member.T @ on_clients  # f_c(w_c')
            between = (cross + cross.T) / 2
        rows = to_centres.argmin(axis=1)
        in_use = np.unique(rows)
        merged = merge_clusters(between[np.ix_(in_use, in_use)], state.threshold)
        state.centres = np.stack(
            [state.centres[in_use[merged == k]].mean(axis=0) for k in range(int(merged.max()) + 1)]
        )
        late = np.setdiff1d(np.flatnonzero(state.assignment != NO_CLUSTER), present)
        state.assignment[:] = NO_CLUSTER
        state.assignment[present] = merged[np.searchsorted(in_use, rows)]
        self.join(late)


def widest_gap(distances: np.ndarray) -> float:
    """Return the middle of the widest gap between the sorted pairwise distances.

    >>> widest_gap(np.array([[0, 1, 9], [1, 0, 8], [9, 8, 0.0]]))
    4.5
    """
    pairs = np.sort(distances[np.triu_indices(len(distances), 1)])
    if len(pairs) < 2:
        return float(pairs[0]) if len(pairs) else 1.0
    at = int(np.diff(pairs).argmax())
    return float((pairs[at] + pairs[at + 1]) / 2)
