"""FeSEM (Long et al. 2022; thesis 3.2, Eq. 3.2): K-means over clients' models, plain means. WeCFL is the weighted one.

WeCFL (thesis ch. 3, Alg. 1) weighs clients by samples in both levels: in the K-means and in the mean. Clients are
compared by their fully connected layers. K-means starts from the last centres, so that clusters keep their numbers;
with `shots` it runs in the first rounds only and then stays (thesis 4.3). With the add-on `cam` (FeSEM-CAM): `warmup`
rounds of local training, K-means over the warm models, and the pull of Eq. 13 to the centre.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from rayfl.clustering import NO_CLUSTER, kmeans
from rayfl.config import MOST
from rayfl.federation.interface import Own, Pull, Tested
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class FeSEMOptions(ClusteredOptions):
    """Options of FeSEM and WeCFL."""

    clusters: int = Field(5, ge=1, le=MOST_CLUSTERS, description="number of clusters [K]")
    shots: int | None = Field(None, ge=1, le=MOST, description="cluster in so many rounds only; default: in all")
    pull: float | None = Field(
        None, ge=0, description="pull to the centre in local training [lambda, Eq. 13]; 0.1 with cam, else 0"
    )


@dataclass
class FeSEMState(ClusteredState):
    """And how often K-means has run."""

    shots: int = 0


class FeSEM(Clustered):
    """K-means over weights, unweighted."""

    paper = "Long et al. 2022; thesis 3.2; CAM 3.2"
    Options = FeSEMOptions
    weighted = False
    warms_up = True
    state: FeSEMState

    def start(self) -> None:
        """Begin with every centre at the initial model: who has no cluster yet starts there too."""
        centres = np.repeat(self.fed.initial[None], self.options.clusters, axis=0)
        self.state = FeSEMState(centres, np.full(self.fed.clients, NO_CLUSTER), self.fed.initial)

    def round(self, cohort: np.ndarray) -> None:
        """Train from the cluster's model, cluster the trained models, average."""
        if self.warming_up:
            self.fed.train(cohort, keep=True)
            if self.fed.round < self.warmup_rounds:
                return
            cohort = np.flatnonzero(self.fed.has_model(np.arange(self.fed.clients)))
        else:
            strength = self.options.pull
            if strength is None:
                strength = 0.1 if self.additive else 0.0
            self.local_training(cohort, start=self.centres(), pulls=[Pull(self.centres(), strength)])
        weighted = self.weighted or self.additive  # CAM weighs clients by samples, FeSEM alone does not (Eq. 10, 11)
        self._cluster(cohort, weighted)
        self.recentre(cohort, weighted)

    def _cluster(self, cohort: np.ndarray, weighted: bool) -> None:
        state = self.state
        frozen = self.options.shots is not None and state.shots >= self.options.shots
        if frozen and (state.assignment[cohort] != NO_CLUSTER).all():
            return
        dense = self.fed.layout.part("dense")
        points = self.fed.collect(cohort, "dense")
        weights = self.fed.n_train[cohort] if weighted else None
        state.assignment[cohort], _ = kmeans(
            points,
            self.options.clusters,
            weights,
            start=state.centres[:, dense] if state.shots else None,
            seed=self.rng(),
        )
        state.shots += 1

    def tested_models(self) -> Tested:
        """Test with the cluster's model; while CAM warms up, with each client's own."""
        if self.warming_up and not self.state.shots:
            return Own()
        return self.tested(self.centres())


class WeCFL(FeSEM):
    """The same, with clients weighted by their samples in both levels."""

    paper = "thesis ch. 3, Alg. 1"
    weighted = True
