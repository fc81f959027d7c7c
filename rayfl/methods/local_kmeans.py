"""Local-KMeans (SR-FCA section 5): train locally, one K-means over the weights, then FedAvg in each cluster."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from rayfl.clustering import NO_CLUSTER, kmeans, nearest
from rayfl.config import MOST
from rayfl.federation.interface import Own, Tested
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class LocalKMeansOptions(ClusteredOptions):
    """Options of Local-KMeans."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of clusters [K]")
    warmup: int = Field(10, ge=1, le=MOST, description="rounds of local training before the one K-means")


@dataclass
class LocalKMeansState(ClusteredState):
    """And the centres that K-means found among models trained alone."""

    points: np.ndarray  # (K, parameters)


class LocalKMeans(Clustered):
    """One K-means over locally trained weights, then FedAvg per cluster."""

    paper = "SR-FCA 5"
    Options = LocalKMeansOptions
    state: LocalKMeansState

    def start(self) -> None:
        """Begin with nobody in any cluster."""
        centres = np.repeat(self.fed.initial[None], self.options.clusters, axis=0)
        nobody = np.full(self.fed.clients, NO_CLUSTER)
        self.state = LocalKMeansState(centres, nobody, self.fed.initial, np.zeros((0, self.fed.layout.parameters)))

    def round(self, cohort: np.ndarray) -> None:
        """Train alone; after the warm-up, together with one's cluster."""
        state, fed = self.state, self.fed
        if fed.round <= self.options.warmup:
            fed.train(cohort, keep=True)
            if fed.round == self.options.warmup:
                seen = np.flatnonzero(fed.has_model(np.arange(fed.clients)))
                state.assignment[seen], state.points = kmeans(fed.collect(seen), self.options.clusters, seed=self.rng())
                self.recentre(seen)
                self.share_what_was_learnt_alone(seen)
            return
        newcomers = cohort[state.assignment[cohort] == NO_CLUSTER]
        if len(newcomers):  # who was not there for the K-means trains alone once and joins the nearest cluster
            fed.train(newcomers)
            state.assignment[newcomers] = nearest(fed.collect(newcomers), state.points)
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)

    def tested_models(self) -> Tested:
        """Test with the own model while alone, then with the cluster's."""
        return Own() if self.fed.round < self.options.warmup else self.tested(self.centres())
