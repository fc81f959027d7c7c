"""IFCA (Ghosh et al. 2020; HypCluster is the same; thesis 3.2): a client chooses the model with the smallest loss.

Each round every client of the cohort gets all K models, chooses the one with the smallest loss on its own training data
and trains it. Each model becomes the mean over the clients that chose it, weighted by samples. A model that no client
chooses stays as it is, and may be chosen again later. With the add-on `cam` this is IFCA-CAM: `cam.warmup` rounds of
FedAvg for the global model, then the loss of the sum of both models (CAM Eq. 2), and with `cam.damped` the damped step
of CAM Eq. 6; with `cam.residual` false it is "FedAvg + IFCA" of thesis Table 7.5.
"""

import numpy as np
from pydantic import Field

from rayfl.client.handed import EvalModels, everyone
from rayfl.methods.clustered import GLOBAL, Clustered
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class IFCAOptions(ClusteredOptions):
    """Options of IFCA."""

    clusters: int = Field(5, ge=1, le=MOST_CLUSTERS, description="number of models [K]")


class IFCA(Clustered):
    """Each client takes the cluster model with the smallest loss."""

    paper = "Ghosh et al. 2020; thesis 3.2; CAM 3.1"
    Options = IFCAOptions
    named_by_cam = True
    dampens = True

    def round(self, cohort: np.ndarray) -> None:
        """Assign by loss, train, average."""
        if self.warming_up:
            self.fed.train(cohort, start=everyone(self.state.shared, self.fed.clients), slot=GLOBAL)
            self._move_shared(cohort, GLOBAL)
            return
        self.state.assignment[cohort] = self.losses(cohort, self.state.centres).argmin(axis=1)
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)

    def eval_models(self) -> EvalModels:
        """Test with the cluster's model; during CAM's warm-up, only with the global model."""
        if self.warming_up:
            return everyone(self.state.shared, self.fed.clients)
        return self.tested(self.centres())
