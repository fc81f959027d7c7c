"""FedProx (Li et al. 2020; thesis 2.2): FedAvg whose clients also minimise mu/2 ||w - W_g||^2.

Every client does all its local steps: the partial work of Li et al. is left out, as in the thesis.
"""

import numpy as np
from pydantic import Field

from rayfl.client.objective import Proximal
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.options import MethodOptions

THESIS_MU = 0.95
MU_SOURCE = "the thesis prints 0.95 (3.5.2, 7.4.1), its author's script has 0.1, Li et al. try 0.001 to 1"


class FedProxOptions(MethodOptions):
    """Options of FedProx."""

    mu: float = Field(THESIS_MU, ge=0, description=f"strength of the pull to the global model; {MU_SOURCE}")


class FedProx(FedAvg):
    """One model for all, with a proximal term."""

    paper = "Li et al. 2020; thesis 2.2"
    Options = FedProxOptions
    options: FedProxOptions

    def round(self, cohort: np.ndarray) -> None:
        """Train from W_g with a pull towards it, average by training samples."""
        model = self._global()
        self.fed.train(cohort, start=model, objective=[Proximal(model, self.options.mu)])
        self.state.model = self.fed.mean(cohort, weights=self.fed.n_train[cohort])
