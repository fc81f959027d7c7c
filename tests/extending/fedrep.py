"""FedRep: each client first trains its own head on a fixed backbone, then the backbone under that head."""

import numpy as np

from rayfl import Method
from rayfl.federation import Models, Overlay


class FedRep(Method):
    def start(self):
        self.state = self.fed.initial

    def round(self, cohort):
        self.fed.train(cohort, start=self.shared(), keep=True, part="head")
        self.fed.train(cohort, start=self.shared(), keep=True, part="backbone", stream=1)
        self.state = self.fed.mean(cohort, weights=self.fed.n_train[cohort], part="backbone")

    def eval_models(self):
        return Overlay(self.shared())

    def shared(self):
        return Models(self.state[None], np.zeros(self.fed.clients, np.int32), "backbone")
