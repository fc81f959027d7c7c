"""FedGroup (Duan et al. 2021; FedAC 2.2): static groups from decomposed cosine similarity (EDC), and a cold start.

The first cohort trains from the initial model. K-means on the cosines of its updates with their leading singular
directions gives the groups. A client that comes later first trains from the initial model once, and joins the group
whose mean update is most similar to its own. After that, each group runs FedAvg.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from rayfl.client.handed import everyone
from rayfl.clustering import NO_CLUSTER, cosine, edc, kmeans
from rayfl.methods.clustered import Clustered, ClusteredState
from rayfl.methods.method import Assigned
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class FedGroupOptions(ClusteredOptions):
    """Options of FedGroup."""

    clusters: int = Field(4, ge=1, le=MOST_CLUSTERS, description="number of groups [m]")


@dataclass
class FedGroupState(ClusteredState):
    """ClusteredState, and each group's mean first update."""

    directions: np.ndarray  # (K, parameters)


class FedGroup(Clustered):
    """Static groups from decomposed cosine similarity."""

    paper = "Duan et al. 2021; FedAC 2.2"
    Options = FedGroupOptions
    state: FedGroupState

    @classmethod
    def server_models(cls, options: Any, clients: int) -> int:
        """Return K, or the number of clients if that is smaller: no cluster starts empty."""
        return min(options.clusters, clients)

    def start(self) -> None:
        """Begin with no groups."""
        m, size = self.fed.clients, self.fed.layout.size
        nobody = np.full(m, NO_CLUSTER)
        none = np.zeros((0, self.fed.layout.parameters), np.float32)
        self.state = FedGroupState(np.zeros((0, size), np.float32), nobody, self.fed.initial, none)

    def round(self, cohort: np.ndarray) -> None:
        """Group the newcomers, then FedAvg in each group."""
        state = self.state
        newcomers = cohort[state.assignment[cohort] == NO_CLUSTER]
        if len(newcomers):
            self._group(newcomers)
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)

    def assign_newcomers(self, clients: np.ndarray) -> Assigned:
        """Assign newcomers by the update of one training from the initial model: the paper's cold start."""
        if not len(self.state.centres):
            return super().assign_newcomers(clients)
        self._group(clients)
        return self.welcomed(clients)

    def _group(self, newcomers: np.ndarray) -> None:
        state, fed = self.state, self.fed
        fed.train(newcomers, start=everyone(fed.initial, fed.clients), stream=1, from_rest=True)
        updates = fed.collect(newcomers)
        updates -= fed.initial[: fed.layout.parameters]  # in place, to avoid a third copy of the clients' models
        if len(state.centres):
            state.assignment[newcomers] = cosine(updates, state.directions).argmax(axis=1)
            return
        count = self.options.clusters
        groups, _ = kmeans(edc(updates, count), count, seed=self.rng())
        names, groups = np.unique(groups, return_inverse=True)
        state.assignment[newcomers] = groups
        state.directions = np.stack([updates[groups == k].mean(axis=0) for k in range(len(names))])
        state.centres = fed.mean_by_cluster(newcomers, groups, len(names), fed.n_train[newcomers])
        self.share_what_was_learnt_alone(newcomers)
