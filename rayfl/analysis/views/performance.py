"""Performance: over rounds, at the end, against a baseline, and over the values of a config key."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from rayfl.analysis.labels import Label, config_value, labels
from rayfl.analysis.metrics import by_round, require_metric
from rayfl.errors import InputError, closest

if TYPE_CHECKING:
    from rayfl.results import Run

#: What `low` and `high` are: mean -+ one sample standard deviation, or the least and the greatest value.
Band = Literal["std", "range"]

_ADDON_KEYS = [f"method.{key}" for key in ("addons", "cam", "con", "cks")]
_SPREAD = ["mean", "low", "high", "std", "n"]


def curves(runs: "Sequence[Run]", metric: str = "accuracy", band: Band = "std") -> pd.DataFrame:
    """Return a metric over rounds: label, round, mean, low, high, std, n. `n` counts the runs that have the round.

    With one run there is no spread: low and high are the mean, std is NaN.
    """
    require_metric(runs, metric)
    named = [str(label) for label in labels(runs)]
    parts = [
        pd.DataFrame({"label": name, "round": values.index, "value": values.to_numpy()})
        for name, values in ((name, by_round(run, metric)) for name, run in zip(named, runs, strict=True))
    ]
    return _spread(_together(parts, ["label", "round", "value"]), ["label", "round"], band)


def final(runs: "Sequence[Run]", metrics: Sequence[str] = ("accuracy", "macro_f1"), band: Band = "std") -> pd.DataFrame:
    """Return metrics at each run's last evaluated round: label, metric, mean, low, high, std, n."""
    rows = []
    for metric in metrics:
        require_metric(runs, metric)
        rows += [
            {"label": str(label), "metric": metric, "value": value}
            for label, run in zip(labels(runs), runs, strict=True)
            for value in by_round(run, metric).tail(1)
        ]
    return _spread(pd.DataFrame(rows, columns=["label", "metric", "value"]), ["label", "metric"], band)


def addon_effect(runs: "Sequence[Run]", metric: str = "accuracy", band: Band = "std") -> pd.DataFrame:
    """Return a metric at each run's last evaluated round, methods apart from their add-ons: label, addons, mean, low,
    high, std, n.

    `addons` is empty for the method alone, else such as "cam" or "con+cks".
    """
    require_metric(runs, metric)
    rows = [
        {"label": str(label), "addons": "+".join(run.config.method.options.get("addons", [])), "value": value}
        for label, run in zip(labels(runs, without=_ADDON_KEYS), runs, strict=True)
        for value in by_round(run, metric).tail(1)
    ]
    return _spread(pd.DataFrame(rows, columns=["label", "addons", "value"]), ["label", "addons"], band)


def paired_differences(runs: "Sequence[Run]", baseline: str, metric: str = "accuracy") -> pd.DataFrame:
    """Return each run's difference to the baseline's run of the same seed: label, seed, round, value, baseline,
    difference.

    `baseline` is a whole label, or the method part of one ("fedavg"): then each run is compared with the baseline in
    its own setting. Both are taken at the last round that both have evaluated. Runs without a partner are left out.
    """
    require_metric(runs, metric)
    named = labels(runs)
    texts = [str(label) for label in named]
    if baseline not in texts and baseline not in {label.method for label in named}:
        known = list(dict.fromkeys([*(label.method for label in named), *texts]))
        raise InputError(
            f"baseline={baseline!r}: no run is called that{closest(baseline, known)}; there are: {', '.join(known)}"
        )
    whole = baseline in texts
    found: dict[tuple[str, int], pd.Series] = {}
    order: list[tuple[str, int]] = []
    partner: dict[tuple[str, int], tuple[str, int]] = {}
    for label, run in zip(named, runs, strict=True):
        seed = run.config.seed
        key, values = (str(label), seed), by_round(run, metric)
        if key not in found:
            order.append(key)
        if key not in found or len(values) > len(found[key]):  # of two runs with the same key, take the longer
            found[key] = values
        partner[key] = (baseline if whole else str(Label(baseline, label.setting)), seed)
    rows = []
    for key in order:
        other = partner[key]
        if key == other or other not in found:
            continue
        both = found[key].index.intersection(found[other].index)
        if len(both):
            last = both.max()
            value, base = found[key][last], found[other][last]
            rows.append((*key, last, value, base, value - base))
    return pd.DataFrame(rows, columns=["label", "seed", "round", "value", "baseline", "difference"])


def sensitivity(runs: "Sequence[Run]", key: str, metric: str = "accuracy", band: Band = "std") -> pd.DataFrame:
    """Return a metric at each run's last evaluated round over the values of a config key: label, value, mean, low,
    high, std, n.

    Labels leave the key out, so that runs that differ only in it are one line. Runs without the key are left out.
    """
    require_metric(runs, metric)
    found = [config_value(run, key) for run in runs]
    if runs and all(value is None for value in found):
        raise InputError(f"key={key!r}: no run's config has it; write it dotted, as in method.mu")
    rows = [
        {"label": str(label), "at": at, "value": value}
        for label, run, at in zip(labels(runs, without=[key]), runs, found, strict=True)
        if at is not None
        for value in by_round(run, metric).tail(1)
    ]
    frame = _spread(pd.DataFrame(rows, columns=["label", "at", "value"]), ["label", "at"], band)
    return frame.rename(columns={"at": "value"})


def _spread(values: pd.DataFrame, by: list[str], band: Band) -> pd.DataFrame:
    """Return mean, low, high, std and n of `value` for each group, in the order in which groups first appear."""
    if band not in ("std", "range"):
        raise InputError(f"band={band!r} is not allowed; allowed: std, range")
    if values.empty:
        return values.reindex(columns=[*by, *_SPREAD])
    grouped = values.groupby(by, sort=False)["value"]
    frame = grouped.agg(mean="mean", low="min", high="max", std="std", n="size").reset_index()
    if band == "std":
        half = np.nan_to_num(frame["std"])
        frame["low"], frame["high"] = frame["mean"] - half, frame["mean"] + half
    # Sort labels in the order of the runs; sort rounds, and values of a key that are numbers, in ascending order.
    rank = {label: number for number, label in enumerate(dict.fromkeys(values["label"]))}
    rising = [name for name in by[1:] if pd.api.types.is_numeric_dtype(frame[name])]
    return frame.sort_values(
        ["label", *rising], key=lambda c: c.map(rank) if c.name == "label" else c, kind="stable", ignore_index=True
    )


def _together(parts: Sequence[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    some = [part for part in parts if len(part)]
    return pd.concat(some, ignore_index=True) if some else pd.DataFrame(columns=columns)
