"""PACFL: before training, clients send the main directions of their data; angles between them give the clusters."""

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from rayfl.methods.clustered import Clustered
from rayfl.methods.options import ClusteredOptions


class Options(ClusteredOptions):
    clusters: int = 4
    directions: int = 3


def main_directions(client, count):
    """Return an orthonormal basis of the client's samples, one per row."""
    inputs = client.samples()[0].flatten(1).double().cpu().numpy()
    return np.linalg.svd(inputs, full_matrices=False)[2][: int(count)]


class PACFL(Clustered):
    Options = Options

    def round(self, cohort):
        if self.fed.round == 1:
            everybody = self.fed.present
            bases = self.fed.map(everybody, main_directions, np.array(self.options.directions))
            cosines = np.linalg.svd(np.einsum("iad,jbd->ijab", bases, bases), compute_uv=False)[..., 0]
            angles = np.arccos(np.clip((cosines + cosines.T) / 2, 0, 1))
            np.fill_diagonal(angles, 0)
            tree = linkage(squareform(angles, checks=False), "average")
            self.state.assignment[everybody] = fcluster(tree, self.options.clusters, "maxclust") - 1
        self.local_training(cohort, start=self.centres())
        self.recentre(cohort)
