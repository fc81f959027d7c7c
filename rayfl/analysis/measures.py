"""What a comparison reads from one run: a final metric, overall and by client; clusters; the cost to reach a target."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from rayfl.analysis.drift import drifts
from rayfl.analysis.metrics import lower_is_better
from rayfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from rayfl.results import Run

#: The rounds by which a run is judged. The round with the best test value is not offered: test data would choose it.
At = Literal["last", "last3", "best-validation"]
_LAST = {"last": 1, "last3": 3}
_KEYS = ("run", "method", "seed", "round", "extras")
_WORST_SHARE = 10


@dataclass(frozen=True)
class Measured:
    """The numbers of one run: means over the rounds by which it is judged; NaN if a number is missing."""

    run: "Run"
    rounds: tuple[int, ...]
    value: float
    figures: dict[str, float] = field(default_factory=dict)
    clients: "pd.Series | None" = None  # the metric of each client


def is_share(metric: str) -> bool:
    """Whether tables print this metric in percent."""
    return any(word in metric for word in ("accuracy", "f1"))


def check_at(at: str) -> None:
    """Refuse an unknown value of `at`."""
    if at not in get_args(At):
        raise InputError(f"at={at} is not allowed: use one of {', '.join(get_args(At))}")


def check_target(metric: str, target: float | None) -> None:
    """Refuse a target that no run can reach, such as 80 for an accuracy of 80 %."""
    if target is None:
        return
    if not math.isfinite(target):
        raise InputError(f"target={target} is no number to reach: give one such as 0.9")
    if is_share(metric) and target > 1:
        raise InputError(f"target={target:g}: {metric} is at most 1; for {target:g} % write {target / 100:g}")


def has_metric(run: "Run", metric: str) -> bool:
    """Whether the metric was measured in some round of the run."""
    return not by_round(run, metric).empty


def metric_names(run: "Run") -> list[str]:
    """Return the metrics that a run has: columns of `rounds` and keys of `extras` that are numbers."""
    import pandas as pd

    names = [name for name in run.rounds.columns if name not in _KEYS and run.rounds[name].notna().any()]
    extras = run.extras
    return names + [name for name in extras.columns if pd.to_numeric(extras[name], errors="coerce").notna().any()]


def measure(run: "Run", metric: str, at: At, target: float | None = None) -> Measured | None:
    """Return the figures of a run; None if it was never evaluated by this metric."""
    values = by_round(run, metric)
    if values.empty:
        return None
    rounds = _judged_rounds(run, metric, at, values)
    table = run.rounds.set_index("round").loc[list(rounds)]
    figures = {name: float(table[name].mean()) for name in ("ari", "misclustering", "clusters") if name in table}
    clients = _clients(run, metric, rounds, figures)
    figures |= _recovery(run, metric)
    if target is not None:
        figures |= _to_target(
            run, values, lambda value: value <= target if lower_is_better(metric) else value >= target
        )
    return Measured(run, rounds, float(values.loc[list(rounds)].mean()), figures, clients)


def _judged_rounds(run: "Run", metric: str, at: At, values: "pd.Series") -> tuple[int, ...]:
    if at in _LAST:
        return tuple(values.index.to_numpy()[-_LAST[at] :].tolist())
    validation = by_round(run, f"validation_{metric}")
    validation = validation[validation.index.isin(values.index)]
    if validation.empty:
        raise InputError(
            f"at=best-validation: {run.path} has no validation_{metric}; run it again with validation samples, such as"
            " partition.validation=0.1, or use at=last"
        )
    best = validation.argmin() if lower_is_better(metric) else validation.argmax()
    return (int(validation.index.to_numpy()[best]),)


def by_round(run: "Run", metric: str) -> "pd.Series":
    """Return a metric by round, where it was measured."""
    import pandas as pd

    if metric in run.rounds.columns and metric not in _KEYS:
        found = run.rounds.set_index("round")[metric]
    elif metric in run.extras.columns:
        found = run.extras[metric]
    else:
        return pd.Series(dtype=float)
    return pd.to_numeric(found, errors="coerce").dropna().astype(float)


def _clients(run: "Run", metric: str, rounds: tuple[int, ...], figures: dict[str, float]) -> "pd.Series | None":
    """Return the metric of each client, and add the spread over clients to `figures`."""
    name = metric.removesuffix("_mean")
    if name not in run.clients.columns or name in (*_KEYS, "client", "cluster", "true_cluster", "trained"):
        return None
    table = run.clients[run.clients["round"].isin(rounds)].pivot(index="client", columns="round", values=name)
    table = table.astype(float)
    if not table.notna().any(axis=None):
        return None
    worst, spread = [], []
    for number in table.columns:
        values = table[number].dropna().sort_values(ascending=not lower_is_better(metric)).to_numpy()
        worst.append(values[: max(1, len(values) // _WORST_SHARE)].mean())
        spread.append(values.std())
    figures["worst10"] = sum(worst) / len(worst)
    figures["client_std"] = sum(spread) / len(spread)
    return table.mean(axis=1)


def _recovery(run: "Run", metric: str) -> dict[str, float]:
    """Return the share of drifts after which the metric was back, and the mean rounds until then; the same for ARI."""
    figures: dict[str, float] = {}
    for name, prefix in ((metric, ""), ("ari", "ari_")):
        found = drifts(run, name)["rounds_to_recovery"]
        if len(found) and has_metric(run, name):
            figures |= {f"{prefix}recovered": found.notna().mean(), f"{prefix}rounds_to_recovery": found.mean()}
    return figures


def _to_target(run: "Run", values: "pd.Series", reached: Callable[[float], bool]) -> dict[str, float]:
    """Return rounds, MB and seconds up to the first evaluated round that reaches the target; NaN if none does."""
    there = values.index.to_numpy()[[reached(value) for value in values.to_numpy()]]
    if not len(there):
        return {"rounds_to_target": math.nan, "mb_to_target": math.nan, "seconds_to_target": math.nan}
    first = int(there[0])
    until = run.rounds[run.rounds["round"] <= first]
    return {
        "rounds_to_target": float(first),
        "mb_to_target": float(until["bytes_up"].sum() + until["bytes_down"].sum()) / 1e6,
        "seconds_to_target": float(until["seconds_total"].sum()),
    }
