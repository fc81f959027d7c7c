"""SR-FCA (Vardhan, Ghosh and Mazumdar 2024): clusters from pairwise distances, successively refined, without a given K.

ONE_SHOT (Algorithm 1): all clients train alone; clients at most `threshold` apart are connected, and connected
components of at least `smallest` clients are the clusters. Then REFINE is repeated `refinements` times: train a model
per cluster from a fresh start, averaging its clients' models by the trimmed mean (Algorithm 3); RECLUSTER each client
to the nearest cluster (Algorithm 2); MERGE remaining clusters that are at most the threshold apart, with the plain mean
of their models as the new model (Algorithm 4). In the remaining rounds, the merged models are trained further.

- Distances are cross-losses (Definition 5.1), as mean loss per sample, or L2 between models. The loss of a cluster is
  the plain mean over its clients: in RECLUSTER the clients it was trained with, in MERGE those that RECLUSTER gave it.
- A client whose component is too small joins the nearest cluster; the paper's graph would drop it. The size of a
  cluster is its number of clients, at least `smallest`, in ONE_SHOT and in MERGE.
- TrimmedMeanGD averages models after local steps, as in the authors' experiments; Algorithm 3 prints gradients.
- Without `threshold`, it is the middle of the widest gap between the sorted pairwise distances. The paper tunes it.
- A client that was not there for ONE_SHOT joins the centre with the smallest loss on its data.
- Clients are tested with their own model while they train alone, including the last round of ONE_SHOT; later with their
  cluster's model.

Extras name the stage, for Tables 1, 2 and 4: `one_shot`, `refine` (training in clusters), `merge` (the last round of a
refinement, after RECLUSTER and MERGE) and `train`, with the number of the `refinement`. Rounds of `merge` also have
`clusters_before_recluster`, `clusters_before_merge`, `clusters_after_merge`, and in `moved` the number of clients that
RECLUSTER moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rayfl.aggregation import trimmed_mean
from rayfl.client.handed import EvalModels, Personal
from rayfl.clustering import (
    NO_CLUSTER,
    components,
    losses_between_clusters,
    losses_to_clusters,
    merge_near_clusters,
    recluster,
    squared_distances,
)
from rayfl.config import MOST
from rayfl.federation.library import losses
from rayfl.host_memory import collected_need, memory_here, refuse_excess
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
    """ClusteredState, and the result of ONE_SHOT: its clients, their models, the models' losses, and the threshold."""

    present: np.ndarray  # (p,) clients
    alone: np.ndarray  # (p, size) their models, trained alone
    losses: np.ndarray  # (p, p): the loss of model j on the data of client i; empty with L2
    threshold: float
    merged: dict[str, int]  # what the last RECLUSTER and MERGE did, as extras report it


class OneShot(Clustered):
    """The first stage, with which other methods can start too."""

    Options = OneShotOptions
    state: SRFCAState

    def start(self) -> None:
        """Begin with no client in any cluster."""
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
            {},
        )

    @property
    def alone(self) -> bool:
        """Whether clients train alone in this round."""
        return self.fed.round <= self.options.one_shot_rounds

    def one_shot(self, cohort: np.ndarray) -> None:
        """Train alone; in the last of these rounds, find the clusters."""
        state, fed = self.state, self.fed
        seen = np.union1d(cohort, np.flatnonzero(fed.has_model(np.arange(fed.clients), ALONE)))
        refuse_excess([collected_need(fed.layout.size, len(seen))], memory_here())
        fed.train(cohort, keep=True, slot=ALONE)
        if fed.round < self.options.one_shot_rounds:
            return
        state.present = seen
        state.alone = fed.collect(state.present, slot=ALONE, buffers=True)
        if self.options.distance == "cross_loss":
            state.losses = losses(fed, state.present, state.alone)
        distances = self._between_models(state.alone, state.losses)
        state.threshold = self.options.threshold or widest_gap(distances)
        found = components(distances, state.threshold, self.options.smallest)
        state.assignment[state.present] = found
        count, samples = int(found.max()) + 1, fed.n_train[state.present]
        state.centres = fed.mean_by_cluster(state.present, found, count, samples, slot=ALONE)
        self.share_what_was_learnt_alone(state.present, ALONE)

    def join(self, cohort: np.ndarray) -> None:
        """Assign clients that missed ONE_SHOT to the centre with the smallest loss."""
        late = cohort[self.state.assignment[cohort] == NO_CLUSTER]
        if len(late):
            self.state.assignment[late] = self.losses(late, self.state.centres).argmin(axis=1)

    def _between_models(self, models: np.ndarray, losses: np.ndarray) -> np.ndarray:
        if self.options.distance == "l2":
            return np.sqrt(squared_distances(models[:, : self.fed.layout.parameters]))
        distances = (losses + losses.T) / 2
        np.fill_diagonal(distances, 0.0)
        return distances

    def eval_models(self) -> EvalModels:
        """Test with the client's own model while clients train alone, then with the cluster's model."""
        return Personal(ALONE) if self.alone else self.tested(self.centres())

    def extras(self) -> Mapping[str, Any]:
        """Return the stage, and the threshold once there is one."""
        found = {"threshold": self.state.threshold} if self.state.threshold else {}
        return {"stage": self.stage()[0], **found}

    def stage(self) -> tuple[str, int]:
        """Return the stage that this round belongs to, and the number of the refinement, 0 before the first."""
        return ("one_shot" if self.alone else "train"), 0


class SRFCA(OneShot):
    """Successive refinement of clusters from pairwise distances."""

    paper = "Vardhan et al. 2024"
    Options = SRFCAOptions

    def round(self, cohort: np.ndarray) -> None:
        """ONE_SHOT, then REFINE `refinements` times, then continue training."""
        options, state = self.options, self.state
        if self.alone:
            self.one_shot(cohort)
            return
        self.join(cohort)
        stage, _ = self.stage()
        first = (self.fed.round - options.one_shot_rounds - 1) % options.refine_rounds == 0
        if stage != "train" and first:  # w_0 of Algorithm 3
            state.centres = np.repeat(self.fed.initial[None], len(state.centres), axis=0)
        self.local_training(cohort, start=self.centres())
        self._trimmed_recentre(cohort)
        if stage == "merge":
            self._recluster_and_merge()

    def stage(self) -> tuple[str, int]:
        """Return the stage that this round belongs to, and the number of the refinement, 0 before the first."""
        options = self.options
        if self.alone:
            return "one_shot", 0
        done, step = divmod(self.fed.round - options.one_shot_rounds - 1, options.refine_rounds)
        if done >= options.refinements:
            return "train", options.refinements
        return ("merge" if step == options.refine_rounds - 1 else "refine"), done + 1

    def extras(self) -> Mapping[str, Any]:
        """Return the stage, the number of the refinement, the threshold, and in rounds of MERGE what it did."""
        stage, refinement = self.stage()
        return {**super().extras(), "refinement": refinement, **(self.state.merged if stage == "merge" else {})}

    def _trimmed_recentre(self, cohort: np.ndarray) -> None:
        """TrimmedMeanGD (Algorithm 3) with local steps."""
        state = self.state
        vectors, rows = self.fed.collect(cohort, buffers=True), state.assignment[cohort]
        centres = state.centres.copy()
        for row in np.unique(rows):
            centres[row] = trimmed_mean(vectors[rows == row], self.options.beta)
        state.centres = centres

    def _recluster_and_merge(self) -> None:
        """RECLUSTER (Algorithm 2), then MERGE (Algorithm 4) of the remaining clusters."""
        state, fed, present = self.state, self.fed, self.state.present
        before, count = state.assignment[present], len(state.centres)
        if self.options.distance == "l2":
            parameters = fed.layout.parameters
            distances = np.sqrt(squared_distances(np.vstack([state.alone, state.centres])[:, :parameters]))
            to_clusters = distances[: len(present), len(present) :]
            rows = recluster(to_clusters)
            between = distances[len(present) :, len(present) :]
        else:
            found = losses(fed, present, state.centres)  # f_i(w_c)
            to_clusters = losses_to_clusters(found, state.losses, before)
            rows = recluster(to_clusters)
            between = losses_between_clusters(found, rows)
        after, part_of = merge_near_clusters(rows, to_clusters, between, state.threshold, self.options.smallest)
        merged = int(part_of.max()) + 1
        state.centres = np.stack([state.centres[part_of == k].mean(axis=0) for k in range(merged)])
        state.merged = {
            "clusters_before_recluster": count,
            "clusters_before_merge": len(np.unique(rows)),
            "clusters_after_merge": merged,
            "moved": int((rows != before).sum()),
        }
        late = np.setdiff1d(np.flatnonzero(state.assignment != NO_CLUSTER), present)
        state.assignment[:] = NO_CLUSTER
        state.assignment[present] = after
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
