"""Ditto (Li et al. 2021; FedTSDP 4.1.3): FedAvg, and for each client a personal model pulled to the global one.

Li et al. test the personal models; this is `accuracy`. In FedTSDP's Tables 3 to 5, Ditto is always within 2.4 points of
FedAvg, even where methods with personal layers are 27 points ahead of both: there, its global model must have been
tested. So the accuracy of W_g is also reported, as `global_accuracy` in extras. It equals FedAvg's, bit for bit.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from rayfl.client.handed import EvalModels, Personal
from rayfl.client.objective import Proximal
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.method import Assigned
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
        """Train the personal model with a pull towards the received W_g, and W_g itself by FedAvg."""
        self.fed.train(
            cohort, objective=[Proximal(self._global(), self.options.lam)], keep=True, slot=PERSONAL, stream=1
        )
        super().round(cohort)

    def eval_models(self) -> EvalModels:
        """Test each client with its personal model, and newcomers with the global one until they have trained."""
        return self.own_or_given(Personal(PERSONAL), self._global())

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Test the global model too."""
        return {"global": self._global()}

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Test newcomers, who have no personal model yet, with the global one."""
        return Assigned(self._global(), self.assignment()[clients])
