"""FedAvg (McMahan et al. 2017; thesis 2.1): one model for all, the mean of the clients' models weighted by n_i."""

from dataclasses import dataclass

import numpy as np

from rayfl.client.handed import EvalModels, Models, everyone
from rayfl.methods.method import Method


@dataclass
class FedAvgState:
    """The global model W_g."""

    model: np.ndarray


class FedAvg(Method):
    """One model for all."""

    paper = "McMahan et al. 2017; thesis 2.1"
    state: FedAvgState

    def start(self) -> None:
        """Begin from the initial model."""
        self.state = FedAvgState(self.fed.initial)

    def round(self, cohort: np.ndarray) -> None:
        """Train from W_g, average by training samples."""
        self.fed.train(cohort, start=self._global())
        self.state.model = self.fed.mean(cohort, weights=self.fed.n_train[cohort])

    def eval_models(self) -> EvalModels:
        """Test everyone with W_g."""
        return self._global()

    def assignment(self) -> np.ndarray:
        """Everyone is in the one cluster."""
        return np.zeros(self.fed.clients, np.int32)

    def _global(self) -> Models:
        return everyone(self.state.model, self.fed.clients)
