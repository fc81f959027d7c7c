"""FedPer (Arivazhagan et al. 2019; FedTSDP 2.1): the backbone is averaged, each client's head stays with it."""

from dataclasses import dataclass

import numpy as np

from rayfl.federation.interface import Own, everyone
from rayfl.methods.method import Method


@dataclass
class FedPerState:
    """The shared backbone, in a whole vector."""

    backbone: np.ndarray


class FedPer(Method):
    """A common backbone, a head per client."""

    paper = "Arivazhagan et al. 2019; FedTSDP 2.1"
    state: FedPerState

    def start(self) -> None:
        """Begin from the initial model."""
        self.state = FedPerState(self.fed.initial)

    def round(self, cohort: np.ndarray) -> None:
        """Lay the backbone over what each client keeps, train, average the backbones by samples."""
        self.fed.train(cohort, start=everyone(self.state.backbone, self.fed.clients, "backbone"), keep=True)
        self.state.backbone = self.fed.mean(cohort, self.fed.n_train[cohort], part="backbone")

    def tested_models(self) -> Own:
        """Test each client with its own model, as it was trained last."""
        return Own()

    def assignment(self) -> np.ndarray:
        """Everyone is in the one cluster."""
        return np.zeros(self.fed.clients, np.int32)
