"""FeSEM (Long et al. 2022; thesis 3.2, Eq. 3.2): K-means over clients' models, plain means. WeCFL: weighted by samples.

WeCFL (thesis ch. 3, Alg. 1) weights clients by samples on both levels: in the K-means and in the mean. Clients are
compared by all fully connected layers (thesis 3.5.2), by the last one (Remark 7.3.5, and the author's code), or by all
parameters; `on` selects this. With `shots`, K-means runs only in the first rounds, and then the clusters stay (thesis
4.4.1: 10).

A single start of K-means often ends in a poor optimum, and a warm start would keep it forever. So the first clustering
is the best of `starts` runs by inertia. Later clusterings start once from the last centres and `starts` - 1 times from
newly drawn centres; the best result is renumbered so that clients keep their clusters' numbers. If only some clients
take part, the runs from new centres get only as many clusters as the warm start fills: with K they could only split the
clusters that are present. All starts share one Gram matrix of the clients. Measured with 200 clients of 400,000 numbers
and K = 10: 2 s for ten starts, while a single start on the numbers themselves took 11 s.

With the add-on `cam` (FeSEM-CAM): `cam.warmup` rounds of local training, K-means over the resulting models, means
weighted by samples (CAM Eq. 11), and the pull of Eq. 13 to the centre. The two texts differ here: thesis Eq. 7.13 moves
the model by the fraction lambda of the way at each step, CAM Eq. 13 by lambda times the learning rate, which has no
visible effect with the papers' lambda of 0.001 to 0.1 and a rate of 0.001. `pull_reading` offers both; the default is
the one that has an effect. Both print n_i / n before the gradient: this is an error, as it is the client's own step.
With `cam.residual` false, this is "FedAvg + FeSEM" of thesis Table 7.5: its FeSEM part is plain FeSEM, without weights
and without a pull.
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
    shots: int | None = Field(
        None, ge=1, le=MOST, description="cluster only in this many first rounds; default: in all"
    )
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
    """ClusteredState, and how often K-means has run."""

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
        """Begin with every centre at the initial model; clients without a cluster start from it too."""
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
            fill=len(cohort) == len(self.fed.present),
            seed=self.rng(),
        )
        state.shots += 1

    def eval_models(self) -> EvalModels:
        """Test with the cluster's model; during CAM's warm-up, while W_g is untrained, with each client's own model."""
        if self.warming_up:
            return self.centres() if self.state.shots else Personal()
        return self.tested(self.centres())


class WeCFL(FeSEM):
    """FeSEM, with clients weighted by their samples in both levels."""

    paper = "thesis ch. 3, Alg. 1"
    weighted = True
