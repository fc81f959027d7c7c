"""CGPFL (Tang, Guo and Guo, IJCAI 2022; FedAC 2.2, 5.2): personal models with a soft pull to their cluster's centre.

Each client keeps its own model and trains it with mu/2 ||w_i - W_c(i)||^2. The server clusters the latest models of all
clients that have taken part, by K-means with a warm start, and moves each centre to the plain mean of its clients'
models. The server holds the compared layers of these models once, and briefly a second time while they arrive.

The paper has the same parts: K generalised models on the server, each guiding the personal models of its cluster, and
clusters that are updated during training. Simplifications here:

- The paper has two nested problems, with the personal models in the inner one and the generalised models in the outer
  one. Here one local training serves both: the personal model itself is clustered and averaged, without an inner solver
  and a second learning rate.
- K is given. The paper's heuristic form (CGPFL-Heur) also chooses K, by a bound on the generalisation error.
- Clients are compared by their fully connected layers only, as in FeSEM.
"""

import numpy as np
from pydantic import Field

from rayfl.client.handed import EvalModels
from rayfl.client.objective import Proximal
from rayfl.clustering import NO_CLUSTER, kmeans
from rayfl.methods.clustered import Clustered
from rayfl.methods.options import MOST_CLUSTERS, ClusteredOptions


class CGPFLOptions(ClusteredOptions):
    """Options of CGPFL."""

    clusters: int = Field(5, ge=1, le=MOST_CLUSTERS, description="number of clusters [K]")
    mu: float = Field(1.0, ge=0, description="pull of a client's model to its cluster's centre")


class CGPFL(Clustered):
    """Personal models with a soft pull to the cluster's centre."""

    paper = "Tang et al. 2022; FedAC 5.2"
    Options = CGPFLOptions

    def round(self, cohort: np.ndarray) -> None:
        """Train personal models, cluster them, average."""
        state, fed = self.state, self.fed
        self.local_training(cohort, objective=[Proximal(self.centres(), self.options.mu)], keep=True)
        seen = np.flatnonzero(fed.has_model(np.arange(fed.clients)))
        known = (state.assignment != NO_CLUSTER).any()
        points = fed.collect(seen, "dense")
        start = state.centres[:, fed.layout.part("dense")] if known else None
        state.assignment[seen], _ = kmeans(points, self.options.clusters, start=start, seed=self.rng())
        in_use = np.unique(state.assignment[seen])
        centres = state.centres.copy()
        centres[in_use] = fed.mean_of_kept(state.assignment, in_use)
        state.centres = centres

    def eval_models(self) -> EvalModels:
        """Test each client with its own model."""
        return self.personal_models()
