"""How changes of the planted clusters affect a run: how far a metric falls, and when it is back."""

import math
from typing import TYPE_CHECKING

from rayfl.analysis.metrics import by_round, lower_is_better

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.results import Run

#: A metric is back when it is at most this much worse than before.
TOLERANCE = 0.01
#: The value before a drift is the mean of this many evaluated rounds.
WINDOW = 3
_COLUMNS = ["round", "until", "changed", "before", "worst", "rounds_to_recovery"]


def drifts(run: "Run", metric: str = "accuracy", tolerance: float = TOLERANCE, window: int = WINDOW) -> "pd.DataFrame":
    """Return a row for each drift of a run: round, until, changed, before, worst, rounds_to_recovery.

    A drift begins in the `round` in which clients change. The metric is back in the first evaluated round in which it
    is at most `tolerance` worse than before. All changes until then belong to the same drift, so a gradual drift is one
    row: `until` is the round of the last of these changes, and `changed` counts the changes of all clients.

    `before` is the mean of the last `window` evaluated rounds before the drift, `worst` the worst value during it.
    `rounds_to_recovery` counts the rounds from `round` until the metric is back: 0 if `round` is evaluated and the
    metric has not fallen, NaN if the metric is not back yet. ARI is measured against the planted clusters of each
    round. Changes before the first evaluated round have no row.
    """
    import pandas as pd

    sign = -1 if lower_is_better(metric) else 1
    values, changes = sign * by_round(run, metric), by_round(run, "changed")
    rows = []
    done = 0  # the last round of the previous drift
    for number in changes[changes > 0].index.tolist():
        if number <= done:
            continue
        before, after = values[values.index < number].tail(window), values[values.index >= number]
        if before.empty:  # before the first evaluation, there is no value to recover
            continue
        level = float(before.mean())
        back = after.index[(after >= level - tolerance).to_numpy()]
        end = int(back[0]) if len(back) else int(run.rounds["round"].max())
        within = changes[(changes.index >= number) & (changes.index <= end)]
        worst = float(after[after.index <= end].min()) if len(after) else math.nan
        until, took = int(within.index[-1]), float(back[0] - number) if len(back) else math.nan
        rows.append((number, until, int(within.sum()), sign * level, sign * worst, took))
        done = end
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"round": int, "until": int, "changed": int})
