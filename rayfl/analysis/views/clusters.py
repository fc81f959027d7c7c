"""Clusters over rounds: their sizes, their agreement with the planted clusters, and clients that move between them."""

from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd

from rayfl.analysis.metrics import by_round
from rayfl.analysis.truth import matched
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

_SUMMARY = ["round", "clusters", "largest_share", "ari", "nmi", "misclustering"]


def cluster_sizes(run: "Run") -> pd.DataFrame:
    """Return the size of every cluster in every round: round, cluster, size. Empty without clusters."""
    return run.clusters[["round", "cluster", "size"]].reset_index(drop=True)


def cluster_summary(run: "Run") -> pd.DataFrame:
    """Return numbers about all clusters together: round, clusters, largest_share, ari, nmi, misclustering.

    One row per round that has clusters. The last three are NaN where no clusters are planted.
    """
    return run.rounds.dropna(subset=["clusters"])[_SUMMARY].astype({"clusters": int}).reset_index(drop=True)


def moves(run: "Run") -> pd.DataFrame:
    """Return the cluster of every client (rows) in every round (columns).

    Values are missing for clients without a cluster, and in rounds without evaluation for clients that did not train,
    because the tables do not have their cluster then. Empty if no client ever had a cluster.
    """
    rows = run.clients[["client", "round", "cluster"]]
    if rows["cluster"].isna().all():
        none = pd.DataFrame(index=pd.Index([], dtype="int64", name="client"), dtype="Int32")
        return none.rename_axis(columns="round")
    return rows.pivot(index="client", columns="round", values="cluster")


def flows(run: "Run") -> pd.DataFrame:
    """Return how many clients moved from which cluster to which between two rounds: previous, round, source, target,
    count.

    Only rounds in which the tables have every client are used. Clients without a cluster are in cluster NA.
    """
    columns = ["previous", "round", "source", "target", "count"]
    clients = run.clients[["round", "client", "cluster"]]
    if clients["cluster"].isna().all():
        return pd.DataFrame(columns=columns)
    parts = []
    for previous, number in pairwise(complete_rounds(run)):
        before = clients[clients["round"] == previous].set_index("client")["cluster"].rename("source")
        after = clients[clients["round"] == number].set_index("client")["cluster"].rename("target")
        counts = pd.concat([before, after], axis=1).groupby(["source", "target"], dropna=False).size()
        parts.append(counts.rename("count").reset_index().assign(previous=previous, round=number)[columns])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def contingency(run: "Run", round: int | None = None) -> pd.DataFrame:
    """Return how many clients of each planted cluster (rows) are in each found one (columns), in one round.

    The default of `round` is the last evaluated one. Found clusters are in the order of the planted ones that they
    match best, so that a perfect clustering is a diagonal. Empty if there are no planted or no found clusters.
    """
    rows = clients_at(run, round).dropna(subset=["cluster", "true_cluster"])
    table = pd.crosstab(rows["true_cluster"].astype(int), rows["cluster"].astype(int))
    return table[table.columns[matched(table.to_numpy())]].rename_axis(index="true_cluster", columns="cluster")


def last_truth(run: "Run") -> pd.Series:
    """Return the planted cluster of each client as the tables have it last; clients may change theirs."""
    return run.clients.drop_duplicates("client", keep="last").set_index("client")["true_cluster"]


def clients_at(run: "Run", round: int | None = None) -> pd.DataFrame:
    """Return the rows of all clients in one round; by default, the last round in which the tables have all clients."""
    clients = run.clients
    if round is None:
        return clients[clients["round"] == max(complete_rounds(run), default=0)]
    found = clients[clients["round"] == round]
    if found.empty and len(clients):
        raise InputError(
            f"round={round}: the run in {run.path} has the rounds {clients['round'].min()} to {clients['round'].max()}"
        )
    return found


def complete_rounds(run: "Run") -> list[int]:
    """Return the rounds in which the tables have every client: those evaluated, and those in which everyone trained.

    Newcomers that have not arrived yet are missing from these rounds too.
    """
    rows = run.clients.groupby("round").size()
    evaluated = rows.index.isin(by_round(run, "loss").index)
    everyone = rows[evaluated].max() if evaluated.any() else run.config.partition.clients
    return [int(number) for number in rows.index[evaluated | (rows == everyone)]]
