"""Metrics of a run by name: columns of `rounds` and numbers in `extras`; and for which of them lower is better."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rayfl.errors import InputError, closest

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.results import Run

#: Columns that are not measurements.
KEYS = ("run", "method", "seed", "round", "extras", "client", "cluster", "true_cluster", "trained")


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is the better one: a loss, an error, a spread, a cost.

    >>> lower_is_better("validation_loss"), lower_is_better("mae_mean"), lower_is_better("accuracy")
    (True, True, False)
    """
    falls = metric.removesuffix("_mean").endswith(("loss", "mse", "mae", "accuracy_std"))
    return falls or metric == "misclustering" or metric.startswith(("bytes_", "seconds_"))


def by_round(run: "Run", metric: str) -> "pd.Series":
    """Return a metric's values by round, for the rounds that have it: a column of `rounds`, or a key of `extras`."""
    import pandas as pd

    rounds = run.rounds
    if metric in rounds and metric not in KEYS:
        values = rounds.set_index("round")[metric]
    elif len(rounds) and metric in run.extras:
        values = run.extras[metric]
    else:
        return pd.Series(dtype=float, name=metric, index=pd.Index([], dtype="int64", name="round"))
    return pd.to_numeric(values, errors="coerce").dropna().astype(float)


def require_metric(runs: "Sequence[Run]", metric: str) -> None:
    """Refuse a metric that none of the runs has. Runs without rounds do not count: they may get any metric later."""
    begun = [run for run in runs if len(run.rounds)]
    known = {name for run in begun for name in map(str, run.rounds) if name not in KEYS}
    known |= {name for run in begun for name in map(str, run.extras) if not by_round(run, name).empty}
    if begun and metric not in known:
        raise InputError(
            f"metric={metric!r}: no run has it{closest(metric, sorted(known))}; there are: {', '.join(sorted(known))}"
        )
