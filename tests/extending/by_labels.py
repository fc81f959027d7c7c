"""Clusters by label histograms: clients send how many samples of each class they have; then FedAvg per cluster."""

import numpy as np

from rayfl.clustering import kmeans
from rayfl.methods.clustered import Clustered
from rayfl.methods.options import ClusteredOptions


class Options(ClusteredOptions):
    clusters: int = 3


def label_shares(client):
    counts = client.label_counts()
    return counts / counts.sum()


class ByLabels(Clustered):
    Options = Options

    def round(self, cohort):
        if self.fed.round == 1:
            shares = self.fed.map(np.arange(self.fed.clients), label_shares)
            self.state.assignment[:] = kmeans(shares, self.options.clusters, seed=self.rng())[0]
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)
