"""ONE_SHOT-IFCA (SR-FCA section 5): SR-FCA's first stage finds the clusters that IFCA starts with.

The paper says that the initial clustering comes from ONE_SHOT, but not with which models IFCA starts. With
`begin: mean` they are the means of the models that a cluster's clients trained alone, weighted by samples, and the
first assignment by loss follows at once. With `begin: fresh`, as in the authors' code, they are new random models, and
the clients train them for one round in the clusters of ONE_SHOT, so that these clusters are not lost.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from rayfl.methods.sr_fca import OneShot, OneShotOptions


class OneShotIFCAOptions(OneShotOptions):
    """Options of ONE_SHOT-IFCA."""

    begin: Literal["mean", "fresh"] = Field(
        "mean", description="IFCA's first models: means of those trained alone, or new random ones"
    )


class OneShotIFCA(OneShot):
    """IFCA from the clusters of ONE_SHOT."""

    paper = "SR-FCA 5"
    Options = OneShotIFCAOptions
    dampens = True

    def round(self, cohort: np.ndarray) -> None:
        """ONE_SHOT, then assign by loss, train, average."""
        if self.alone:
            self.one_shot(cohort)
            return
        state = self.state
        if self.options.begin == "fresh" and self.fed.round == self.options.one_shot_rounds + 1:
            state.centres = self.fed.initial_models(len(state.centres), first=2)  # number 1 is CAM's W_g
            self.join(cohort)
        else:
            state.assignment[cohort] = self.losses(cohort, state.centres).argmin(axis=1)
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)
