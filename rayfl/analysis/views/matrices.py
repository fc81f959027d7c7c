"""The similarity between clients or clusters: square matrices, with the clusters of their rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from rayfl.analysis.views.clusters import clients_at
from rayfl.analysis.views.samples import Split, label_distribution
from rayfl.clustering import cosine, kl_divergences
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

Order = Literal["cluster", "truth", "client"]
#: Matrices that methods put into extras on request: their key, and their measure.
_REPORTED = {
    "similarity": "cosine similarity",
    "distance": "L2 distance",
    "divergence": "Jensen-Shannon divergence",
}


@dataclass(frozen=True)
class Matrix:
    """A square matrix between clients or clusters. Row i belongs to `members[i]`."""

    values: np.ndarray  # (n, n)
    members: np.ndarray  # (n,) numbers of clients, or of clusters
    cluster: np.ndarray  # (n,) found cluster of each member, -1 for none
    truth: np.ndarray  # (n,) planted cluster of each member, -1 where none are planted
    measure: str  # such as "cosine similarity"
    round: int  # the round after which members were compared; 0 if the matrix holds for the whole run

    def __len__(self) -> int:
        return len(self.members)

    @property
    def is_similarity(self) -> bool:
        """Whether a larger value means more similar."""
        return self.measure.endswith("similarity")

    def ordered(self, by: Order) -> "Matrix":
        """Return the same matrix with members in order of their clusters, their planted clusters, or their numbers.

        Members without a cluster come last.
        """
        last = np.iinfo(np.int64).max
        found, truth = (np.where(labels < 0, last, labels) for labels in (self.cluster, self.truth))
        keys = {
            "cluster": (self.members, truth, found),
            "truth": (self.members, found, truth),
            "client": (self.members,),
        }
        if by not in keys:
            raise InputError(f"order={by!r} is not allowed; allowed: {', '.join(keys)}")
        return self.only(np.lexsort(keys[by]))

    def only(self, rows: np.ndarray) -> "Matrix":
        """Return the matrix of some members, in this order."""
        values = self.values[np.ix_(rows, rows)]
        return Matrix(values, self.members[rows], self.cluster[rows], self.truth[rows], self.measure, self.round)


def similarity(run: "Run", round: int | None = None, order: Order = "cluster") -> Matrix:
    """Return the matrix by which a method compared its clients, after a round (default: the last one reported).

    FedAC reports it with method.report_similarity, FedTSDP with method.report_divergence. Without such a report, the
    matrix is empty.
    """
    reported = _reported(run)
    if reported is None:
        nobody = np.array([], dtype=np.int64)
        return Matrix(np.zeros((0, 0)), nobody, nobody, nobody, "similarity", 0)
    name, column = reported
    number = int(column.index.max()) if round is None else round
    if number not in column.index:
        raise InputError(f"round={round}: {run.path} has a {name} only of the rounds {list(column.index)}")
    found: Any = column[number]
    values = np.array(found["matrix"] if isinstance(found, dict) else found, dtype=float)
    members = np.array(found["clients"]) if isinstance(found, dict) else np.arange(len(values))
    return of_clients(run, values, members, _REPORTED[name], number).ordered(order)


def label_divergence(run: "Run", split: Split = "train", order: Order = "truth", trust: bool = False) -> Matrix:
    """Return the Kullback-Leibler divergence KL(row || column) between clients' label distributions, in nats.

    Half a sample is added to every class of every client: otherwise, a class that one client lacks would make the
    divergence infinite. Like `label_distribution`, this partitions the data again.
    """
    counts = label_distribution(run, split, trust)
    values = kl_divergences(counts.to_numpy())
    return of_clients(run, values, counts.index.to_numpy(), "KL divergence", 0).ordered(order)


def centre_similarity(run: "Run", round: int | None = None, trust: bool = False) -> Matrix:
    """Return the cosine similarity between the saved models of the clusters: all of their weights.

    `round` selects models that the callback save_models has saved; by default, the final models are used.
    """
    import torch

    clusters = np.unique(clients_at(run, round)["cluster"].dropna().astype(int))
    with torch.no_grad():
        vectors = [
            torch.cat([p.flatten() for p in run.model(cluster=int(k), round=round, trust=trust).parameters()])
            for k in clusters
        ]
        points = torch.stack(vectors).double().numpy() if vectors else np.zeros((0, 1))
    none = np.full(len(clusters), -1)
    return Matrix(cosine(points, points), clusters, clusters, none, "cosine similarity", round or len(run.rounds))


def _reported(run: "Run") -> tuple[str, pd.Series] | None:
    """Return the name of the matrix that the run reports, and the matrices by round."""
    for name in _REPORTED:
        if len(run.rounds) and name in run.extras:
            column = run.extras[name].dropna()
            if len(column):
                return name, column
    return None


def of_clients(run: "Run", values: np.ndarray, members: np.ndarray, measure: str, number: int) -> Matrix:
    """Return the matrix with the clients' clusters in that round, as far as the tables have them."""
    rows = run.clients if number == 0 else run.clients[run.clients["round"] <= number]
    # A round without evaluation has rows only of the clients that trained: for others, take the last known cluster.
    last = rows.drop_duplicates("client", keep="last").set_index("client").reindex(members)
    cluster, truth = (last[name].fillna(-1).to_numpy(dtype=np.int64) for name in ("cluster", "true_cluster"))
    return Matrix(values, members, cluster, truth, measure, number)
