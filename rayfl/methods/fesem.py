"""FeSEM (Long et al. 2022; thesis 3.2, Eq. 3.2): K-means over clients' models, plain means. WeCFL is the weighted one.

WeCFL (thesis ch. 3, Alg. 1) weighs clients by samples in both levels: in the K-means and in the mean. Clients are
compared by their fully connected layers (thesis 3.5.2), or by the last one (Remark 7.3.5, and the author's code) or all
parameters, as `on` says. With `shots`, K-means runs in the first rounds only and then stays (thesis 4.4.1: 10).

A single start of K-means often ends in a poor optimum, and a warm start would keep it for good. So the first
clustering is the best of `starts` by inertia; later ones begin once from the last centres and `starts` - 1 times from
new draws, and the best is renumbered so that clients keep their clusters' numbers. Where only some clients take part,
new draws get as many clusters as the warm start fills: K of them could only split what is there. All starts share one
Gram matrix of the clients. Measured with 200 clients of 400,000 numbers and K = 10: 2 s for ten starts, where a single
one on the numbers themselves took 11 s.

With the add-on `cam` (FeSEM-CAM): `cam.warmup` rounds of local training, K-means over the warm models, means by
samples (CAM Eq. 11), and the pull of Eq. 13 to the centre. The two texts differ there: thesis Eq. 7.13 moves the model
by lambda of the way at each step, CAM Eq. 13 by lambda times the learning rate, which with the papers' 0.001 to 0.1
and a rate of 0.001 is nothing. `pull_reading` offers both; the default is the one that does something. Both print
n_i / n before the gradient: a slip, as it is the client's own step. With `cam.residual` false, "FedAvg + FeSEM" of
thesis Table 7.5: the FeSEM in it is plain FeSEM, without weights and without a pull.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from rayfl.client.handed import EvalModels, Personal
from rayfl.client.objective import Proximal
from rayfl.clustering import NO_CLUSTER, best_kmeans
from rayfl.config import MOST
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions, ComparedPart


class FeSEMOptions(ClusteredOptions):
    """Options of FeSEM and WeCFL."""

    clusters: int = Field(5, ge=1, le=MOST_CLUSTERS, description="number of clusters [K]")
    on: ComparedPart = Field(
        "dense", description="what is compared: the last layer, all fully connected ones (thesis 3.5.2), or everything"
    )
    starts: int = Field(10, ge=1, le=1000, description="K-means starts of a round; after the first, one is warm")
    shots: int | None = Field(None, ge=1, le=MOST, description="cluster in so many rounds only; default: in all")
    pull: float | None = Field(
        None,
        ge=0,
        description="pull to the centre in local training [lambda, Eq. 13; the papers try 0.001, 0.01 and 0.1]; 0.1 "
        "with cam, else 0",
    )
    pull_reading: Literal["thesis", "cam"] = Field(
        "thesis",
        description="thesis: each step moves by lambda of the way to the centre (Eq. 7.13); cam: by lambda times the "
        "learning rate (CAM Eq. 13)",
    )

    @model_validator(mode="after")
    def _no_step_past_the_centre(self) -> "FeSEMOptions":
        if self.pull is not None and self.pull > 1 and self.pull_reading == "thesis":
            raise ValueError(
                f"method.pull={self.pull} would step past the centre: use at most 1, or method.pull_reading=cam"
            )
        return self


@dataclass
class FeSEMState(ClusteredState):
    """And how often K-means has run."""

    shots: int = 0


class FeSEM(Clustered):
    """K-means over weights, unweighted."""

    paper = "Long et al. 2022; thesis 3.2; CAM 3.2"
    Options = FeSEMOptions
    options: FeSEMOptions
    weighted = False
    named_by_cam = True
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
                strength = 0.1 if self.residual else 0.0
            pull = Proximal(self.centres(), strength, per_step=self.options.pull_reading == "thesis")
            self.local_training(cohort, start=self.centres(), objective=[pull])
        weighted = self.weighted or self.residual  # CAM weighs clients by samples, FeSEM alone does not (Eq. 10, 11)
        self._cluster(cohort, weighted)
        self.recentre(cohort, weighted)

    def _cluster(self, cohort: np.ndarray, weighted: bool) -> None:
        state, options = self.state, self.options
        frozen = options.shots is not None and state.shots >= options.shots
        if frozen and (state.assignment[cohort] != NO_CLUSTER).all():
            return
        state.assignment[cohort] = best_kmeans(
            self.fed.collect(cohort, options.on),
            options.clusters,
            self.fed.n_train[cohort] if weighted else None,
            start=state.centres[:, self.fed.layout.part(options.on)] if state.shots else None,
            previous=state.assignment[cohort] if state.shots else None,
            starts=options.starts,
            fill=len(cohort) == self.fed.clients,
            seed=self.rng(),
        )
        state.shots += 1

    def eval_models(self) -> EvalModels:
        """Test with the cluster's model; while CAM warms up and W_g is still untrained, with each client's own."""
        if self.warming_up:
            return self.centres() if self.state.shots else Personal()
        return self.tested(self.centres())


class WeCFL(FeSEM):
    """The same, with clients weighted by their samples in both levels."""

    paper = "thesis ch. 3, Alg. 1"
    weighted = True
