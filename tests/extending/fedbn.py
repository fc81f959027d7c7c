"""FedBN: everything is averaged but the normalisation layers, which stay with the clients."""

import numpy as np

from rayfl import Method
from rayfl.federation import Models, Overlay


class FedBN(Method):
    def start(self):
        self.state = self.fed.initial

    def round(self, cohort):
        self.fed.train(cohort, start=self.shared(), keep=True)
        self.state = self.fed.mean(cohort, weights=self.fed.n_train[cohort], part="without_norm")

    def eval_models(self):
        return Overlay(self.shared())

    def shared(self):
        return Models(self.state[None], np.zeros(self.fed.clients, np.int32), "without_norm")
