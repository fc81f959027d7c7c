"""FedSoft (Ruan and Joe-Wong, AAAI 2022; SR-FCA section 5): a client is a mixture of K centres.

Every `estimate_every` rounds [tau] client i gets all centres, and u_ik becomes the share of its samples on which centre
k has the least loss, never below `smoothing` [sigma]. Its local objective adds lam/2 sum_k u_ik ||w - W_k||^2, a pull
to the mixture of the centres. Centre k becomes the mean of the trained models weighted by v_ik, which is u_ik n_i over
the sum of these over clients.

- Started from: the paper asks for a minimiser of the local objective, not where to begin. `start: own`, the default, is
  the client's own last model, as in the authors' code; `start: mixture` is the mixture that it is pulled to.
- Tested: the client's own model w_i, the paper's personalised model. The accuracy of the centre with the client's
  largest share is `centre_accuracy` in extras; SR-FCA tests FedSoft with the cluster's model.
- The paper draws clients for each centre with probability v_ik and takes their plain mean. Here the cohort is drawn as
  for every method, and means are weighted by v_ik, the expectation of that; the authors' code can do the same.
- In a round of estimation the paper asks all clients, here those present. Who comes for the first time is asked then.
- Shares that are raised to sigma make a client's sum of shares a little more than 1. The mixture divides by that sum;
  the pull's strength is lam, not lam times the sum. The authors' code raises only shares of zero.
- The defaults of sigma and tau are those of the authors' code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from rayfl.client.handed import EvalModels, Models, Personal
from rayfl.client.objective import Proximal
from rayfl.clustering import NO_CLUSTER
from rayfl.config import MOST
from rayfl.federation.library import shares_of_least_loss
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions

# Exact sums have whole weights, and the more they add up to, the fewer binary places are left for the models.
_TOTAL, _LEAST = 2**24, 2**10


class FedSoftOptions(ClusteredOptions):
    """Options of FedSoft."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of centres [K]")
    lam: float = Field(0.1, ge=0, description="pull to the mixture of centres [lambda]")
    smoothing: float = Field(1e-4, gt=0, lt=1, description="least share of a centre [sigma]")
    estimate_every: int = Field(2, ge=1, le=MOST, description="rounds between two estimates of the shares [tau]")
    start: Literal["own", "mixture"] = Field(
        "own", description="where local training begins: the client's last model, or the mixture of its centres"
    )


@dataclass
class FedSoftState(ClusteredState):
    """And each client's shares."""

    shares: np.ndarray  # u (m, K); 0 before a client has taken part


class FedSoft(Clustered):
    """Soft mixture weights over K centres, proximal local update."""

    paper = "Ruan and Joe-Wong 2022; SR-FCA 5"
    Options = FedSoftOptions
    state: FedSoftState

    def start(self) -> None:
        """Begin with K different models and no shares."""
        centres = self.fed.initial_models(self.options.clusters)
        m = self.fed.clients
        self.state = FedSoftState(
            centres, np.full(m, NO_CLUSTER), self.fed.initial, np.zeros((m, self.options.clusters))
        )

    def round(self, cohort: np.ndarray) -> None:
        """Estimate shares, train toward the mixtures, average each centre by its share."""
        state, fed, options = self.state, self.fed, self.options
        due = (fed.round - 1) % options.estimate_every == 0
        asked = cohort if due else cohort[~state.shares[cohort].any(axis=1)]
        if len(asked):
            state.shares[asked] = np.maximum(shares_of_least_loss(fed, asked, state.centres), options.smoothing)
            state.assignment[asked] = state.shares[asked].argmax(axis=1)
        shares = state.shares[cohort]
        choice = np.full(fed.clients, -1)
        choice[cohort] = np.arange(len(cohort))
        mixed = shares / shares.sum(axis=1, keepdims=True) @ state.centres
        mixtures = Models(mixed.astype(np.float32), choice, travels=not due)  # who has all centres can mix them
        start = mixtures if options.start == "mixture" else None
        self.local_training(cohort, start=start, objective=[Proximal(mixtures, options.lam)], keep=True)
        importance = shares * fed.n_train[cohort, None]
        largest = max(_TOTAL // len(cohort), _LEAST)
        weights = np.rint(importance / importance.max(axis=0) * largest).astype(np.int64)
        state.centres = np.stack([fed.mean(cohort, weights[:, k]) for k in range(len(state.centres))])

    def eval_models(self) -> EvalModels:
        """Test each client with its own model."""
        return self.tested(Personal())

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Test the centre that a client has the largest share of, as SR-FCA does."""
        return {**super().also_tested(), "centre": self.tested(self.centres())}
