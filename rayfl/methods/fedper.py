"""FedPer (Arivazhagan et al. 2019; FedTSDP 2.1): the backbone is averaged, each client's head stays with it.

A client is tested with the averaged backbone and its own head, as FedTSDP (4.2) tests every method with personal
layers: this is the model with which the client would start the next round. `trained_accuracy` in extras is the accuracy
of the model directly after the client's last training, before its backbone was averaged with the others'.

Running statistics of batch norm belong to the module that contains them: those inside the head stay on the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfl.client.handed import EvalModels, Models, Overlay, Personal, everyone
from rayfl.methods.method import Method


@dataclass
class FedPerState:
    """The shared backbone, stored in a vector of full size."""

    backbone: np.ndarray


class FedPer(Method):
    """A common backbone, a head per client."""

    paper = "Arivazhagan et al. 2019; FedTSDP 2.1"
    state: FedPerState

    def start(self) -> None:
        """Begin from the initial model."""
        self.state = FedPerState(self.fed.initial)

    def round(self, cohort: np.ndarray) -> None:
        """Replace the backbone of each client's model by the shared one, train, average the backbones by samples."""
        self.fed.train(cohort, start=self._shared(), keep=True)
        self.state.backbone = self.fed.mean(cohort, self.fed.n_train[cohort], part="backbone")

    def eval_models(self) -> Overlay:
        """Test each client with the averaged backbone and its own head."""
        return Overlay(self._shared())

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Also test each client's model as it was after its last training."""
        return {"trained": Personal()}

    def assignment(self) -> np.ndarray:
        """Everyone is in the one cluster."""
        return np.zeros(self.fed.clients, np.int32)

    def _shared(self) -> Models:
        return everyone(self.state.backbone, self.fed.clients, "backbone")
