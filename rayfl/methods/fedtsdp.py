"""FedTSDP (FedTSDP paper): clusters in two stages, only if predictions show clusters; then fewer layers are shared.

Each round, the server lets the clients' models predict a batch of public, unlabelled data. If the Hopkins statistic of
the predictions (Eq. 6) is above `hopkins`, DBSCAN on their Jensen-Shannon divergence (Eq. 5) groups the clients, DBSCAN
on the L2 distance of their whole weights (Eq. 9) splits the groups, and the batch's points become more likely to be
drawn (Eq. 7, 8). Otherwise the last clusters stay. The shared layers are averaged in each cluster, weighted by samples;
the other layers stay on the client. After a round that clustered, the number L_s of shared layers shrinks (Eq. 11).
Algorithm 1 does this last: the round's mean is over the old number of layers, and the next round sends the new number.

- Clients are tested with the cluster's shared layers and their own personal layers (4.2), which is the model with which
  they start the next round. As long as there is no clustering, this is FedAvg, bit for bit.
- Layers are modules with parameters, and L_s is rounded up to half layers: weight and bias count separately, as in the
  paper's "from 4 to 3.5". Because of the rounding, at least half a layer is always shared. A layer without a bias is
  shared as a whole from its first half on. Running statistics of batch norm are shared with the whole layer that
  contains them.
- The public data (`partition.public`) are in no client's training, validation or test set: they are the source's test
  split without its labels, as in the paper (4.1), or a share of the samples if there is no such split.
- H (Eq. 6) is computed over all clients of the round, up to 100. The paper samples fewer, without saying how many. With
  20 IID clients on the digits, H varies by 0.015 from one sample of 10 clients to another and exceeds 0.65 in some
  rounds; with all 20 it varies by 0.002 and stays below, as in the paper's Figure 10.
- Each noise point of DBSCAN is its own cluster. Only the cohort is clustered; absent clients keep their cluster's
  model. The small constant in Eq. 9 against a division by zero is left out, because nothing is divided.

Eq. 7 as printed freezes the public batch. Each of the N public points has the weight 1/N at first. When a batch of B
points leads to clusters, N/B is added to the weight of each, and Eq. 8 divides all weights by their new sum, 1 + N. A
point of the batch then has the probability (1/N + N/B) / (1 + N), about 1/B; the other N - B points together have
(N - B) / (N (1 + N)), about 1/N. In the next batch, about (B/N) (1 + 1/2 + ... + 1/B) points are new: 0.02 with
N = 10,000 and B = 50. So from the first clustering on, the same B points decide when and how clients are clustered.

The increment N/B fits weights that are 1 on average. `draw: tempered` keeps such weights: W = 1 + (N/B) c for a point
that was in c batches that led to clusters; Eq. 8 then gives the probabilities without changing W. After t clusterings,
a fraction 1 / (1 + t) of the probability is still spread evenly over all points. The default is `printed`, because it
is what the paper says, and the paper explains the rise of H in its Figure 11 by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from rayfl.client.handed import Models, Overlay
from rayfl.clustering import dbscan, hopkins, jensen_shannon, squared_distances
from rayfl.config import MOST
from rayfl.errors import InputError
from rayfl.methods.fedac import MOST_REPORTED
from rayfl.methods.method import Assigned, Method
from rayfl.methods.options import MethodOptions
from rayfl.models import Part

if TYPE_CHECKING:
    from rayfl.client.client import Client

#: The maximum of clients over which the Hopkins statistic is computed.
HOPKINS_SAMPLE = 100


class FedTSDPOptions(MethodOptions):
    """Options of FedTSDP."""

    public_batch: int = Field(50, ge=1, le=MOST, description="public points per round [B]")
    hopkins: float = Field(0.65, gt=0, lt=1, description="cluster when the statistic is above this [h_th]")
    eps_predictions: float = Field(0.15, gt=0, description="DBSCAN radius of the first stage [epsilon_1]")
    eps_weights: float = Field(3.5, gt=0, description="DBSCAN radius of the second stage [epsilon_2]")
    min_points: int = Field(2, ge=1, le=MOST, description="DBSCAN's least number of neighbours")
    shared_layers: float | None = Field(
        None, gt=0, le=MOST, multiple_of=0.5, description="shared layers at the start [L_s], in halves; null: all"
    )
    shrink: float = Field(0.98, gt=0, le=1, description="shared layers are multiplied by this when clustering [psi]")
    draw: Literal["printed", "tempered"] = Field(
        "printed",
        description="chances of public points: Eq. 7 as printed, the same batch after the first clustering; or milder",
    )
    report_divergence: bool = Field(
        False,
        description="put the matrix of Jensen-Shannon divergences between the round's clients into extras,"
        f" for up to {MOST_REPORTED} clients per round",
    )


@dataclass
class FedTSDPState:
    """What the server remembers."""

    models: np.ndarray  # (J, size): each cluster's shared layers, in whole vectors
    assignment: np.ndarray  # (m,) rows of models
    shared_layers: float  # L_s
    draw: np.ndarray  # (public,) W: weight of each public point
    statistic: float = float("nan")
    clustered: bool = False


class FedTSDP(Method):
    """Two-stage decoupling with adaptive personalisation layers."""

    paper = "FedTSDP"
    needs_public = True
    needs_classes = True
    Options = FedTSDPOptions
    options: FedTSDPOptions
    state: FedTSDPState

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int, rounds: int) -> list[str]:
        """Refuse to write large matrices in every round."""
        if options.report_divergence and cohort > MOST_REPORTED:
            return [
                f"method.report_divergence=True: a matrix of {cohort} clients in every round is too much; leave it out,"
                f" or let at most {MOST_REPORTED} clients take part per round"
            ]
        return []

    def start(self) -> None:
        """Begin with everyone in one cluster and all layers shared, or as many as the config says."""
        fed, layers = self.fed, len(self.fed.layout.layers)
        shared = layers if self.options.shared_layers is None else self.options.shared_layers
        if shared > layers:
            raise InputError(
                f"method.shared_layers={shared:g} is more than the network has: use at most {layers}, or null for all"
            )
        draw = np.ones(len(fed.public))
        if self.options.draw == "printed":
            draw /= len(draw)
        self.state = FedTSDPState(fed.initial[None].copy(), np.zeros(fed.clients, np.int64), float(shared), draw)

    def round(self, cohort: np.ndarray) -> None:
        """Algorithm 1, lines 6 to 32."""
        state, fed, options = self.state, self.fed, self.options
        shared = self._shared()
        fed.train(cohort, start=shared, keep=True)
        rng = self.rng()
        size = min(options.public_batch, len(fed.public))
        batch = rng.choice(len(fed.public), size, replace=False, p=state.draw / state.draw.sum())
        predictions = fed.map(cohort, _predictions, fed.public[batch], at_server=True)
        state.statistic = hopkins(predictions.reshape(len(cohort), -1), rng, min(len(cohort), HOPKINS_SAMPLE))
        state.clustered = state.statistic > options.hopkins
        if state.clustered or options.report_divergence:
            divergences = jensen_shannon(predictions)
            self._divergence = {"clients": cohort.tolist(), "matrix": divergences.round(4).tolist()}
        if state.clustered:
            self._cluster(cohort, divergences)
            state.draw[batch] += len(fed.public) / size  # Eq. 7
            if options.draw == "printed":
                state.draw /= state.draw.sum()  # Eq. 8
        self._average(cohort, shared.part)
        if state.clustered:
            state.shared_layers *= options.shrink

    def _cluster(self, cohort: np.ndarray, divergences: np.ndarray) -> None:
        """The two stages of decoupling, lines 20 to 26."""
        options, state = self.options, self.state
        first = dbscan(divergences, options.eps_predictions, options.min_points)
        weights = self.fed.collect(cohort)
        count = len(state.models)
        for group in np.unique(first):
            members = np.flatnonzero(first == group)
            distances = np.sqrt(squared_distances(weights[members]))
            second = dbscan(distances, options.eps_weights, options.min_points)
            state.assignment[cohort[members]] = count + second
            count += int(second.max()) + 1
        # The rows of new clusters are zero until the mean that follows fills them.
        state.models = np.vstack(
            [state.models, np.zeros((count - len(state.models), self.fed.layout.size), np.float32)]
        )

    def _average(self, cohort: np.ndarray, part: Part) -> None:
        """Lines 28 to 30: the mean of the shared layers in each cluster, by samples; unused models are dropped."""
        state, fed = self.state, self.fed
        rows = state.assignment[cohort]
        means = fed.mean_by_cluster(cohort, rows, len(state.models), fed.n_train[cohort], part=part)
        models = state.models.copy()
        models[np.unique(rows)] = means[np.unique(rows)]
        there = fed.present  # clients that have not arrived yet keep no model in use
        in_use, rows = np.unique(state.assignment[there], return_inverse=True)
        state.assignment = np.zeros(fed.clients, np.int64)
        state.assignment[there] = rows
        state.models = models[in_use]

    def eval_models(self) -> Overlay:
        """Test each client with its cluster's shared layers and its own personal ones."""
        return Overlay(self._shared())

    def assignment(self) -> np.ndarray:
        """Return each client's cluster."""
        return self.state.assignment

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Assign newcomers to the cluster whose shared layers, put over the initial model, have the least loss."""
        cluster = super().assign_newcomers(clients).cluster
        self.state.assignment[clients] = cluster
        return Assigned(self.eval_models(), cluster)

    def extras(self) -> Mapping[str, Any]:
        """Return the Hopkins statistic, whether it led to clusters, the shared layers, on request the divergences."""
        state = self.state
        extras = {"hopkins": state.statistic, "clustered": state.clustered, "shared_layers": self._shared().part}
        return extras | ({"divergence": self._divergence} if self.options.report_divergence else {})

    def _shared(self) -> Models:
        """Return each client's shared layers: the first L_s, rounded up to a half."""
        return Models(self.state.models, self.state.assignment, ceil(2 * self.state.shared_layers) / 2)


def _predictions(client: "Client", samples: np.ndarray) -> np.ndarray:
    """Return the class probabilities that a client's model gives public samples (samples, classes)."""
    return client.probabilities(client.model(), client.public(samples))[0]
