"""FedPer (Arivazhagan et al. 2019; FedTSDP 2.1): the backbone is averaged, each client's head stays with it.

A client is tested with the averaged backbone under its own head, as FedTSDP (4.2) tests every method with personal
layers: what the client would begin the next round with. `trained_accuracy` in extras is that of the model as it left
the client's last training, before its backbone was averaged with the others'.

Running statistics of batch norm go with the module that they stand in: those inside the head stay with the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfl.client.handed import EvalModels, Models, Overlay, Personal, everyone
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
        self.fed.train(cohort, start=self._shared(), keep=True)
        self.state.backbone = self.fed.mean(cohort, self.fed.n_train[cohort], part="backbone")

    def eval_models(self) -> Overlay:
        """Test each client with the averaged backbone and its own head."""
        return Overlay(self._shared())

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Test each client's model as it was trained last, too."""
        return {"trained": Personal()}

    def assignment(self) -> np.ndarray:
        """Everyone is in the one cluster."""
        return np.zeros(self.fed.clients, np.int32)

    def _shared(self) -> Models:
        return everyone(self.state.backbone, self.fed.clients, "backbone")
