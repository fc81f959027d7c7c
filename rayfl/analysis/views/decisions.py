"""How methods decide: granularity and its thresholds (FedAC), the Hopkins statistic and shared layers (FedTSDP)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rayfl.analysis.labels import config_value, labels
from rayfl.analysis.metrics import by_round

if TYPE_CHECKING:
    from rayfl.results import Run


def granularity(run: "Run") -> pd.DataFrame:
    """Return what the tuning of the number of clusters sees: round, cluster, size, intra, inter, granularity,
    merge_below, split_above.

    Clusters are those after the round's tuning. The thresholds are NaN unless FedAC tunes by granularity. Empty for
    methods that do not report it.
    """
    frame = run.clusters[["round", "cluster", "size", "intra", "inter", "granularity"]]
    frame = frame.dropna(subset=["granularity"]).reset_index(drop=True)
    tuned = config_value(run, "method.tuning") == "granularity"
    limits = {key: config_value(run, f"method.{key}") if tuned else np.nan for key in ("merge_below", "split_above")}
    return frame.assign(**{key: np.nan if value is None else float(value) for key, value in limits.items()})


def granularity_by_number(runs: "Sequence[Run]") -> pd.DataFrame:
    """Return the clusters' granularity in each run's last round against the number of clusters that it began with:
    label, seed, clusters, mean, variance, n.

    `n` is the number of clusters in that round; a single one has no granularity, and such runs are left out. Labels
    leave the key method.clusters out.
    """
    rows = []
    for label, run in zip(labels(runs, without=["method.clusters"]), runs, strict=True):
        found = granularity(run)
        last = found.loc[found["round"] == run.clusters["round"].max(), "granularity"]
        if len(last):
            began = config_value(run, "method.clusters")
            rows.append((str(label), run.config.seed, began, last.mean(), last.var(ddof=0), len(last)))
    return pd.DataFrame(rows, columns=["label", "seed", "clusters", "mean", "variance", "n"])


def tuning(run: "Run") -> pd.DataFrame:
    """Return the number of clusters before and after each round's tuning, and the mean granularity after it: round,
    before, after, granularity. Empty for methods that do not tune it.
    """
    columns = ["round", "before", "after", "granularity"]
    names = {"clusters_before_tuning": "before", "clusters_after_tuning": "after"}
    if not len(run.rounds) or not set(names) <= set(run.extras):
        return pd.DataFrame(columns=columns)
    frame = run.extras[list(names)].rename(columns=names).dropna().astype(int)
    return frame.join(granularity(run).groupby("round")["granularity"].mean()).reset_index()[columns]


def hopkins(run: "Run", metric: str = "accuracy") -> pd.DataFrame:
    """Return FedTSDP's statistic and what it led to: round, hopkins, threshold, clustered, shared_layers, shrunk,
    and a metric as `value`, NaN in rounds without evaluation.

    `shrunk` marks rounds that share fewer layers than the round before. Empty for other methods.
    """
    columns = ["round", "hopkins", "threshold", "clustered", "shared_layers", "shrunk", "value"]
    if not len(run.rounds) or not {"hopkins", "clustered", "shared_layers"} <= set(run.extras):
        return pd.DataFrame(columns=columns)
    frame = run.extras[["hopkins", "clustered", "shared_layers"]]
    frame = frame.astype({"hopkins": float, "clustered": bool, "shared_layers": float})
    return frame.assign(
        threshold=float(config_value(run, "method.hopkins")),
        shrunk=frame["shared_layers"].diff() < 0,
        value=by_round(run, metric),
    ).reset_index()[columns]
