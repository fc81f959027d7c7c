"""ONE_SHOT-IFCA (SR-FCA section 5): SR-FCA's first stage gives the clusters and models that IFCA goes on with."""

import numpy as np

from rayfl.methods.sr_fca import OneShot


class OneShotIFCA(OneShot):
    """IFCA from the clusters of ONE_SHOT."""

    paper = "SR-FCA 5"
    dampens = True

    def round(self, cohort: np.ndarray) -> None:
        """ONE_SHOT, then assign by loss, train, average."""
        if self.fed.round <= self.options.one_shot_rounds:
            self.one_shot(cohort)
            return
        self.state.assignment[cohort] = self.losses(cohort, self.state.centres).argmin(axis=1)
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)
