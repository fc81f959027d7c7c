"""Ditto (Li et al. 2021; FedTSDP 4.1.3): FedAvg, and beside it a personal model pulled to the global one."""

import numpy as np
from pydantic import Field

from rayfl.federation.interface import Own, Pull
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.options import MethodOptions

PERSONAL = "personal"


class DittoOptions(MethodOptions):
    """Options of Ditto."""

    lam: float = Field(0.1, ge=0, description="pull of the personal model to the global one [lambda]")


class Ditto(FedAvg):
    """A global model by FedAvg plus a separate personal model."""

    paper = "Li et al. 2021; FedTSDP 4.1.3"
    Options = DittoOptions
    options: DittoOptions

    def round(self, cohort: np.ndarray) -> None:
        """Train the personal model toward W_g as it was sent, and W_g itself by FedAvg."""
        self.fed.train(cohort, pulls=[Pull(self._global(), self.options.lam)], keep=True, slot=PERSONAL, stream=1)
        super().round(cohort)

    def tested_models(self) -> Own:
        """Test each client with its personal model."""
        return Own(PERSONAL)
