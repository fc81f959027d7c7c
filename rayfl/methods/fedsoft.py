"""FedSoft (Ruan and Joe-Wong, AAAI 2022; SR-FCA section 5): each client uses a mixture of K centres.

Every `estimate_every` rounds [tau] client i gets all centres, and u_ik becomes the share of its samples on which centre
k has the smallest loss, but at least `smoothing` [sigma]. Its local objective adds lam/2 sum_k u_ik ||w - W_k||^2, a
pull to the mixture of the centres. Centre k becomes the mean of the trained models weighted by v_ik, which is u_ik n_i
divided by its sum over clients.

- Start of local training: the paper asks for a minimiser of the local objective and does not say where to start. With
  `start: own`, the default, it is the client's own last model, as in the authors' code; with `start: mixture` it is the
  mixture that the client is pulled to.
- Tested: the client's own model w_i, the paper's personalised model. The accuracy of the centre with the client's
  largest share is `centre_accuracy` in extras; SR-FCA tests FedSoft with the cluster's model.
- The paper draws clients for each centre with probability v_ik and takes their plain mean. Here the cohort is drawn as
  for every method, and means are weighted by v_ik, which is the expectation of that; the authors' code can do the same.
- In rounds that estimate shares, the paper asks all clients, and this code the clients of the cohort. A client that
  takes part for the first time is asked at once.
- Because shares are raised to sigma, the sum of a client's shares is slightly above 1. The mixture divides by that sum;
  the pull's strength is lam, not lam times the sum. The authors' code raises only shares of zero.
- The defaults of sigma and tau are those of the authors' code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from rayfl.client.handed import EvalModels, Models
from rayfl.client.objective import Proximal
from rayfl.clustering import NO_CLUSTER
from rayfl.config import MOST
from rayfl.federation.library import shares_of_least_loss
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.method import Assigned
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions

# Exact sums need integer weights; the larger their total, the fewer bits are left for the models' fractions.
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
    """ClusteredState, and each client's shares."""

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
        """Estimate shares, train with a pull to the mixtures, average each centre by the clients' shares."""
        state, fed, options = self.state, self.fed, self.options
        due = (fed.round - 1) % options.estimate_every == 0
        asked = cohort if due else cohort[~state.shares[cohort].any(axis=1)]
        if len(asked):
            self._estimate(asked)
        shares = state.shares[cohort]
        choice = np.full(fed.clients, -1)
        choice[cohort] = np.arange(len(cohort))
        mixed = shares / shares.sum(axis=1, keepdims=True) @ state.centres
        mixtures = Models(mixed.astype(np.float32), choice, travels=not due)  # clients with all centres can mix them
        start = mixtures if options.start == "mixture" else None
        self.local_training(cohort, start=start, objective=[Proximal(mixtures, options.lam)], keep=True)
        importance = shares * fed.n_train[cohort, None]
        largest = max(_TOTAL // len(cohort), _LEAST)
        weights = np.rint(importance / importance.max(axis=0) * largest).astype(np.int64)
        state.centres = np.stack([fed.mean(cohort, weights[:, k]) for k in range(len(state.centres))])

    def _estimate(self, clients: np.ndarray) -> None:
        """Let these clients say on which share of their samples each centre has the least loss."""
        state = self.state
        found = shares_of_least_loss(self.fed, clients, state.centres)
        state.shares[clients] = np.maximum(found, self.options.smoothing)
        state.assignment[clients] = state.shares[clients].argmax(axis=1)

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Ask newcomers for their shares at once; test each newcomer with the centre of its largest share."""
        self._estimate(clients)
        return self.welcomed(clients)

    def eval_models(self) -> EvalModels:
        """Test each client with its own model."""
        return self.personal_models()

    def also_tested(self) -> Mapping[str, EvalModels]:
        """Also test the centre with the client's largest share, as SR-FCA does."""
        return {**super().also_tested(), "centre": self.tested(self.centres())}
