"""FL+HC (Briggs et al. 2020; FedAC 2.2): FedAvg, one agglomerative clustering of the updates, FedAvg per cluster.

In the round of the clustering all clients train from the global model, as in the paper, whatever the cohort is. The
server then holds the clients' models, and briefly a second copy while they arrive, but never a third: distances are
computed over blocks of columns.
"""

from typing import Any

import numpy as np
from pydantic import Field

from rayfl.client.handed import everyone
from rayfl.clustering import NO_CLUSTER, agglomerative, squared_distances, update_cosine_distances
from rayfl.config import MOST
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class FLHCOptions(ClusteredOptions):
    """Options of FL+HC."""

    warmup: int = Field(10, ge=1, le=MOST, description="rounds of FedAvg before the clustering [n]")
    distance: str = Field("cosine", pattern="^(cosine|l2)$", description="between updates: cosine or l2")
    threshold: float | None = Field(None, gt=0, description="distance at which clusters are no longer joined")
    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of clusters, where there is no threshold")


class FLHC(Clustered):
    """One agglomerative clustering of the updates."""

    paper = "Briggs et al. 2020; FedAC 2.2"
    Options = FLHCOptions

    @classmethod
    def server_models(cls, options: Any, clients: int) -> int:
        """Return K, or the number of clients if that is smaller: no cluster starts empty."""
        return min(options.clusters, clients)

    def start(self) -> None:
        """Begin with everyone in one cluster."""
        self.state = ClusteredState(
            self.fed.initial[None].copy(), np.zeros(self.fed.clients, np.int64), self.fed.initial
        )

    def round(self, cohort: np.ndarray) -> None:
        """FedAvg in each cluster; there is one cluster until the warm-up is over."""
        if self.fed.round == self.options.warmup + 1:
            self._cluster()
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)

    def _cluster(self) -> None:
        state, fed = self.state, self.fed
        clients = fed.present
        fed.train(clients, start=everyone(state.centres[0], fed.clients), stream=1, from_rest=True)
        models = fed.collect(clients)
        if self.options.distance == "cosine":
            distances = update_cosine_distances(models, state.centres[0, : fed.layout.parameters])
        else:  # distances between models equal those between updates, since all started from the same model
            distances = np.sqrt(squared_distances(models))
        threshold = self.options.threshold
        count = None if threshold is not None else min(self.options.clusters, len(clients))
        state.assignment = np.full(fed.clients, NO_CLUSTER)
        state.assignment[clients] = agglomerative(distances, threshold=threshold, clusters=count)
        state.centres = np.repeat(state.centres, int(state.assignment.max()) + 1, axis=0)
