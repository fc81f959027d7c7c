"""FedAC with the second best rule for the number of clusters, which sees sketches alone, for the closed loop."""

import numpy as np

from rayfl.clustering import UsefulClusters, find_clusters
from rayfl.federation.ledger import FORWARD
from rayfl.methods.fedac import FedAC
from rayfl.methods.judging import first_and_last_loss

#: As offline: the rule compares cuts of one tree, at most half as many as there are clients in it.
SAMPLE = 128


class Bic(FedAC):
    """The Bayesian information criterion on the judged clients' sketches says how many clusters there are."""

    def find_clusters(self, clients: np.ndarray, points: np.ndarray) -> tuple[UsefulClusters, np.ndarray]:
        """Ask clients only what they have learnt."""
        found = find_clusters(points, rule="bic", sample=SAMPLE)
        progress = self.fed.map(clients, first_and_last_loss, passes=2 * FORWARD)
        return UsefulClusters(found.assignment, (), 0.0, found.supported, len(clients)), progress
