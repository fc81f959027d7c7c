"""FedSoft (Ruan and Joe-Wong 2022; SR-FCA section 5): a client is a mixture of K centres.

u_ik is the share of client i's samples on which centre k has the least loss (never below `smoothing`). Its local
objective adds lam/2 sum_k u_ik ||w - W_k||^2, which is a pull of strength lam to the mixture sum_k u_ik W_k, where it
also starts; centre k is the mean of the trained models weighted by u_ik n_i.
"""

import numpy as np
from pydantic import Field

from rayfl.federation.interface import Models, Own, Pull, Tested
from rayfl.methods.clustered import Clustered
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions

_UNIT = 1000  # exact sums have whole weights: shares are counted in thousandths of a sample


class FedSoftOptions(ClusteredOptions):
    """Options of FedSoft."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of centres [K]")
    lam: float = Field(0.1, ge=0, description="pull to the mixture of centres [lambda]")
    smoothing: float = Field(1e-3, gt=0, lt=1, description="least share of a centre [sigma]")


class FedSoft(Clustered):
    """Soft mixture weights over K centres, proximal local update."""

    paper = "Ruan and Joe-Wong 2022; SR-FCA 5"
    Options = FedSoftOptions

    def round(self, cohort: np.ndarray) -> None:
        """Weigh the centres, train the mixtures, average each centre by its share."""
        state, fed = self.state, self.fed
        shares = np.maximum(fed.shares_of_least_loss(cohort, state.centres), self.options.smoothing)
        shares /= shares.sum(axis=1, keepdims=True)
        state.assignment[cohort] = shares.argmax(axis=1)
        choice = np.full(fed.clients, -1)
        choice[cohort] = np.arange(len(cohort))
        mixtures = Models((shares @ state.centres).astype(np.float32), choice)
        self.local_training(cohort, start=mixtures, pulls=[Pull(mixtures, self.options.lam)], keep=True)
        weights = np.rint(shares * fed.n_train[cohort, None] * _UNIT).astype(np.int64)
        state.centres = np.stack([fed.mean(cohort, weights[:, k]) for k in range(len(state.centres))])

    def tested_models(self) -> Tested:
        """Test each client with its own model."""
        return self.tested(Own())
