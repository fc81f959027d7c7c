"""Which client or cluster has samples of which class, found by repeating the run's partition of the data."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from rayfl.analysis.views.clusters import clients_at
from rayfl.errors import InputError
from rayfl.own_code import named_code

if TYPE_CHECKING:
    from rayfl.results import Run

Split = Literal["train", "validation", "test", "all"]


def label_distribution(
    run: "Run", split: Split = "train", trust: bool = False, round: int | None = None
) -> pd.DataFrame:
    """Return how many samples of each class (columns) every client (rows) has, as it sees them in a round, or the last.

    The tables do not hold this: the data are read (or downloaded) and partitioned again, which takes as long as at the
    start of the run. If that is impossible, an InputError says why: the data are not here or have changed, were Python
    objects, have numbers instead of classes, or the config names code to import and `trust` is not set.
    """
    from rayfl.client.task import find_task  # imports torch, which takes seconds
    from rayfl.data import make_partition
    from rayfl.data.sources import load_dataset

    config = run.config
    named = {
        key: names
        for key, names in named_code(config).items()
        if key in ("data.source", "task") or key.startswith("partition.")
    }
    if named and not trust:
        what = ", ".join(f"{key}={name}" for key, names in named.items() for name in names)
        raise InputError(
            f"the config in {run.path} names code to be imported, {what}: if you trust it, pass trust=True"
        )
    targets = find_task(config.task).targets
    if targets == "number":
        raise InputError(f"{run.path} predicts numbers: its samples have no classes to count")
    dataset = load_dataset(config.data, config.partition_seed, config.partition.owner_column, targets)
    at = (int(run.rounds["round"].max()) if len(run.rounds) else 0) if round is None else round
    partition = make_partition(config.partition.lasting(at), dataset, config.partition_seed)
    _refuse_other_data(run, partition.n_train)
    counts = partition.label_counts(dataset, split, at)
    clients = pd.Index(np.arange(partition.clients), name="client")
    return pd.DataFrame(counts, index=clients, columns=pd.Index(np.arange(dataset.classes), name="class"))


def cluster_label_distribution(
    run: "Run",
    split: Split = "train",
    round: int | None = None,
    of: Literal["found", "planted"] = "found",
    trust: bool = False,
) -> pd.DataFrame:
    """Return how many samples of each class (columns) the clients of each cluster (rows) have together.

    Clusters are the found ones after `round` (default: the last evaluated one), or the planted ones. Empty if there are
    none.
    """
    column = "cluster" if of == "found" else "true_cluster"
    rows = clients_at(run, round)
    cluster = rows.set_index("client")[column].dropna().astype(int)
    counts = label_distribution(run, split, trust, rows["round"].max() if len(rows) else None)
    return counts.loc[cluster.index].groupby(cluster.rename("cluster")).sum()


def _refuse_other_data(run: "Run", n_train: np.ndarray) -> None:
    """Refuse data that give clients other numbers of samples than the tables have."""
    known = run.clients.drop_duplicates("client").set_index("client")["n_train"]
    fits = len(known) == 0 or (known.index.max() < len(n_train) and (n_train[known.index] == known).all())
    if not fits:
        raise InputError(
            f"the data of {run.path} have changed: dealt again, clients have other numbers of samples; restore the data"
        )
