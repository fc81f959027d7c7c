"""FedTSDP (FedTSDP paper): clusters in two stages, only when predictions call for it, and fewer shared layers then.

Each round the server lets the clients' models predict a batch of public, unlabelled data. If the Hopkins statistic of
the predictions is above `hopkins`, DBSCAN on their Jensen-Shannon divergence (Eq. 5) groups the clients, DBSCAN on the
L2 distance of their weights (Eq. 9) splits the groups, the share of layers that are averaged shrinks (Eq. 11), and the
batch's points are drawn more often (Eq. 7, 8). Else the last clusters stay. Layers that are not shared stay on the
client.

- The public data (`partition.public`) are in nobody's training, validation or test set: the source's test split without
  its labels, as in the paper (4.1), or a share of the samples where there is no such split.
- Points that DBSCAN calls noise are clusters of their own. Absent clients keep their cluster's model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from pydantic import Field

from rayfl.clustering import dbscan, hopkins, jensen_shannon, squared_distances
from rayfl.config import MOST
from rayfl.federation.interface import Models, Own
from rayfl.methods.method import Method
from rayfl.methods.options import MethodOptions


class FedTSDPOptions(MethodOptions):
    """Options of FedTSDP."""

    public_batch: int = Field(50, ge=1, le=MOST, description="public points per round [B]")
    hopkins: float = Field(0.65, gt=0, lt=1, description="cluster when the statistic is above this [h_th]")
    eps_predictions: float = Field(0.15, gt=0, description="DBSCAN radius of the first stage [epsilon_1]")
    eps_weights: float = Field(3.5, gt=0, description="DBSCAN radius of the second stage [epsilon_2]")
    min_points: int = Field(2, ge=1, le=MOST, description="DBSCAN's least number of neighbours")
    shrink: float = Field(0.98, gt=0, le=1, description="shared layers are multiplied by this when clustering [psi]")


@dataclass
class FedTSDPState:
    """What the server remembers."""

    models: np.ndarray  # (J, size): each cluster's shared layers, in whole vectors
    assignment: np.ndarray  # (m,) rows of models
    shared_layers: float  # L_s
    draw: np.ndarray  # (public,) W: chance of each public point
    statistic: float = float("nan")
    clustered: bool = False


class FedTSDP(Method):
    """Two-stage decoupling with adaptive personalisation layers."""

    paper = "FedTSDP"
    needs_public = True
    Options = FedTSDPOptions
    options: FedTSDPOptions
    state: FedTSDPState

    def start(self) -> None:
        """Begin with everyone in one cluster and all layers shared."""
        fed = self.fed
        draw = np.full(len(fed.public), 1 / len(fed.public))
        everyone_in_one = np.zeros(fed.clients, np.int64)
        self.state = FedTSDPState(fed.initial[None].copy(), everyone_in_one, float(len(fed.layout.layers)), draw)

    def round(self, cohort: np.ndarray) -> None:
        """Algorithm 1, lines 6 to 32."""
        state, fed = self.state, self.fed
        layers = ceil(state.shared_layers)
        fed.train(cohort, start=Models(state.models, state.assignment, layers), keep=True)
        rng = self.rng()
        size = min(self.options.public_batch, len(fed.public))
        batch = rng.choice(len(fed.public), size, replace=False, p=state.draw)
        predictions = fed.predictions(cohort, fed.public[batch])
        state.statistic = hopkins(predictions.reshape(len(cohort), -1), rng)
        state.clustered = state.statistic > self.options.hopkins
        if state.clustered:
            self._cluster(cohort, predictions)
            state.draw[batch] += len(fed.public) / size
            state.draw /= state.draw.sum()
        self._average(cohort, layers)
        if state.clustered:
            state.shared_layers *= self.options.shrink

    def _cluster(self, cohort: np.ndarray, predictions: np.ndarray) -> None:
        """The two stages of decoupling."""
        options, state = self.options, self.state
        first = dbscan(jensen_shannon(predictions), options.eps_predictions, options.min_points)
        weights = self.fed.collect(cohort)
        count = len(state.models)
        for group in np.unique(first):
            members = np.flatnonzero(first == group)
            distances = np.sqrt(squared_distances(weights[members]))
            second = dbscan(distances, options.eps_weights, options.min_points)
            state.assignment[cohort[members]] = count + second
            count += int(second.max()) + 1
        # New clusters begin empty: their rows are filled by the mean that follows.
        state.models = np.vstack(
            [state.models, np.zeros((count - len(state.models), self.fed.layout.size), np.float32)]
        )

    def _average(self, cohort: np.ndarray, layers: int) -> None:
        """Lines 28 to 30: the shared layers' mean in each cluster, by samples; models that nobody has are dropped."""
        state, fed = self.state, self.fed
        rows = state.assignment[cohort]
        means = fed.mean_by_cluster(cohort, rows, len(state.models), fed.n_train[cohort], part=layers)
        models = state.models.copy()
        models[np.unique(rows)] = means[np.unique(rows)]
        in_use, state.assignment = np.unique(state.assignment, return_inverse=True)
        state.models = models[in_use]

    def tested_models(self) -> Own:
        """Test each client with its own model."""
        return Own()

    def assignment(self) -> np.ndarray:
        """Return each client's cluster."""
        return self.state.assignment

    def extras(self) -> Mapping[str, Any]:
        """Return the Hopkins statistic, whether it led to clustering, and the number of shared layers."""
        state = self.state
        return {"hopkins": state.statistic, "clustered": state.clustered, "shared_layers": ceil(state.shared_layers)}
