"""The distribution of a metric over clients, and the clients with the worst values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from rayfl.analysis.labels import labels
from rayfl.analysis.metrics import KEYS, lower_is_better
from rayfl.errors import InputError, closest

if TYPE_CHECKING:
    from rayfl.results import Run

_COLUMNS = ["label", "run", "seed", "round", "client", "cluster", "true_cluster", "n_train", "n_test", "value"]


def client_distribution(runs: "Sequence[Run]", metric: str = "accuracy") -> pd.DataFrame:
    """Return each client's value of a metric at the last evaluated round of its run.

    Columns: label, run, seed, round, client, cluster, true_cluster, n_train, n_test, value. Clients without a value,
    such as those without test samples, are left out.
    """
    _require_client_metric(runs, metric)
    parts = []
    for label, run in zip(labels(runs), runs, strict=True):
        if metric not in run.clients:
            continue
        rows = run.clients.dropna(subset=[metric])
        rows = rows[rows["round"] == rows["round"].max()].rename(columns={metric: "value"})
        parts.append(rows.assign(label=str(label))[_COLUMNS])
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)


def worst_clients(runs: "Sequence[Run]", metric: str = "accuracy", count: int = 10) -> pd.DataFrame:
    """Return the `count` clients with the worst values of each run, worst first; columns as `client_distribution`."""
    if count < 1:
        raise InputError(f"count={count}: ask for 1 client or more")
    frame, rising = client_distribution(runs, metric), not lower_is_better(metric)
    runs_in_order = frame.groupby(["label", "run"], sort=False)
    worst = [rows.sort_values("value", ascending=rising, kind="stable").head(count) for _, rows in runs_in_order]
    return pd.concat(worst, ignore_index=True) if worst else frame


def _require_client_metric(runs: "Sequence[Run]", metric: str) -> None:
    known = {str(name) for run in runs for name in run.clients if name not in (*KEYS, "n_train", "n_test")}
    if runs and metric not in known:
        raise InputError(
            f"metric={metric!r}: the table of clients does not have it{closest(metric, sorted(known))};"
            f" there are: {', '.join(sorted(known))}"
        )
