"""Local-KMeans (SR-FCA section 5; Ghosh et al. 2019): train locally, one K-means over the weights.

`variant: federated`, the default: all clients start from the same model, K-means runs after `warmup` rounds, and then
each cluster continues with FedAvg. This is a fair baseline, and finds planted clusters.

`variant: sr_fca` is the baseline in the SR-FCA paper. Each client starts from its own random model, and the centroids
that K-means finds are tested as they are: nothing is trained afterwards, so rounds after `warmup` change nothing. The
weights of networks with different starts are hardly comparable (their neurons are permuted), so neither the clusters
nor the centroids can be expected to be good. The authors' code also fills each layer from the beginning of the flat
centroid, which would reduce any accuracy to guessing. This error is not repeated here.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from rayfl.client.handed import EvalModels, Models, Personal
from rayfl.clustering import NO_CLUSTER, kmeans, nearest
from rayfl.config import MOST
from rayfl.host_memory import collected_need, memory_here, refuse_excess
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.method import Assigned
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions

_PIECE = 256  # clients whose random initial models are in memory at the same time


class LocalKMeansOptions(ClusteredOptions):
    """Options of Local-KMeans."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of clusters [K]")
    warmup: int = Field(10, ge=1, le=MOST, description="rounds of local training before the one K-means")
    variant: Literal["federated", "sr_fca"] = Field(
        "federated",
        description="federated: one start for all, FedAvg per cluster after K-means; sr_fca: an own random start per "
        "client, and the centroids are the result",
    )

    @model_validator(mode="after")
    def _nothing_for_addons(self) -> "LocalKMeansOptions":
        if self.variant == "sr_fca" and self.addons:
            raise ValueError(
                f"method.addons={self.addons}: method.variant=sr_fca trains no cluster, so they would do nothing;"
                " remove them, or set method.variant=federated"
            )
        return self


@dataclass
class LocalKMeansState(ClusteredState):
    """ClusteredState, and the centres that K-means found among the models that clients trained alone."""

    points: np.ndarray  # (K, parameters)


class LocalKMeans(Clustered):
    """One K-means over locally trained weights, then FedAvg per cluster."""

    paper = "SR-FCA 5"
    Options = LocalKMeansOptions
    state: LocalKMeansState

    def start(self) -> None:
        """Begin with no client in any cluster."""
        centres = np.repeat(self.fed.initial[None], self.options.clusters, axis=0)
        nobody = np.full(self.fed.clients, NO_CLUSTER)
        self.state = LocalKMeansState(centres, nobody, self.fed.initial, np.zeros((0, self.fed.layout.parameters)))

    def round(self, cohort: np.ndarray) -> None:
        """Train alone; after the warm-up, train in clusters."""
        state, fed = self.state, self.fed
        own_starts = self.options.variant == "sr_fca"
        if fed.round <= self.options.warmup:
            seen = np.union1d(cohort, np.flatnonzero(fed.has_model(np.arange(fed.clients))))
            refuse_excess([collected_need(fed.layout.parameters, len(seen))], memory_here())
            self._train_alone(cohort, own_starts)
            if fed.round == self.options.warmup:
                state.assignment[seen], state.points = kmeans(fed.collect(seen), self.options.clusters, seed=self.rng())
                self.recentre(seen, weighted=not own_starts)  # unweighted means are the centroids of K-means
                self.share_what_was_learnt_alone(seen)
            return
        self._join(cohort[state.assignment[cohort] == NO_CLUSTER])
        if own_starts:
            return
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)

    def _join(self, late: np.ndarray) -> None:
        """Let clients that missed the K-means train alone once, and join the nearest centroid."""
        for some in _pieces(late):
            self._train_alone(some, self.options.variant == "sr_fca", keep=False)
            self.state.assignment[some] = nearest(self.fed.collect(some), self.state.points)

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Treat newcomers like all clients that missed the K-means; before the K-means they have no cluster."""
        if not len(self.state.points):
            return super().assign_newcomers(clients)
        self._join(clients)
        return self.welcomed(clients)

    def _train_alone(self, cohort: np.ndarray, own_starts: bool, keep: bool = True) -> None:
        """Continue each client's own training; a client starts from the common model, or from its own random model."""
        fed = self.fed
        new = cohort[~fed.has_model(cohort)] if own_starts else cohort[:0]
        old = np.setdiff1d(cohort, new)
        for clients in _pieces(new):
            choice = np.full(fed.clients, -1)
            choice[clients] = np.arange(len(clients))
            drawn = Models(fed.numbered_initial_models(clients), choice, travels=False)
            fed.train(clients, drawn, keep=keep)
        if len(old):
            fed.train(old, keep=keep)

    def eval_models(self) -> EvalModels:
        """Test with the client's own model before the last warm-up round, then with the cluster's model."""
        return Personal() if self.fed.round < self.options.warmup else self.tested(self.centres())


def _pieces(clients: np.ndarray) -> list[np.ndarray]:
    return [clients[first : first + _PIECE] for first in range(0, len(clients), _PIECE)]
