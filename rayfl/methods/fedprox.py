"""FedProx (Li et al. 2020; thesis 2.2): FedAvg whose clients also minimise mu/2 ||w - W_g||^2."""

import numpy as np
from pydantic import Field

from rayfl.federation.interface import Pull
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.options import MethodOptions


class FedProxOptions(MethodOptions):
    """Options of FedProx."""

    mu: float = Field(0.1, ge=0, description="strength of the pull to the global model")


class FedProx(FedAvg):
    """One model for all, with a proximal term."""

    paper = "Li et al. 2020; thesis 2.2"
    Options = FedProxOptions
    options: FedProxOptions

    def round(self, cohort: np.ndarray) -> None:
        """Train from W_g with the pull toward it, average by training samples."""
        model = self._global()
        self.fed.train(cohort, start=model, pulls=[Pull(model, self.options.mu)])
        self.state.model = self.fed.mean(cohort, weights=self.fed.n_train[cohort])
