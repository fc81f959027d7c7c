"""Rows and columns of a comparison: short names for methods and settings, made from the keys in which runs differ.

A row is a method with its add-ons and options, a column is all else that a run depends on but its seeds.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rayfl.config import Config, dotted_keys

#: Keys that change no number, or only its last bits, and the seeds.
_NO_SETTING = (
    *("name", "seed", "partition.seed", "method", "callbacks", "ray", "state", "output", "federation"),
    *("data.root", "evaluate", "training", "cpu_capability"),
)
#: What may be tuned for each method. It makes a column of its own only if one method has several values of it.
_TUNED = ("local", "participation", "partition.public")
_KINDS = ("data.source", "partition.kind")


@dataclass(frozen=True)
class Labels:
    """The row and the column of each run, in the order of the runs, and what was tuned for single methods."""

    rows: list[str]
    columns: list[str]
    notes: list[str]


def label_runs(configs: Sequence[Config]) -> Labels:
    """Name the row and the column of each run."""
    keys = [dotted_keys(config.to_tree()) for config in configs]
    rows = _row_labels(configs, keys)
    fixed = [_settings(each) for each in keys]
    tuned = [{key: value for key, value in each.items() if _below(key, _TUNED)} for each in fixed]
    core = [{key: value for key, value in each.items() if not _below(key, _TUNED)} for each in fixed]
    groups = [_frozen(each) for each in core]
    swept = [key for key in _varying(tuned) if _has_several(key, tuned, zip(rows, groups, strict=True))]
    for mine, all_tuned in zip(core, tuned, strict=True):
        mine |= {key: all_tuned[key] for key in swept if key in all_tuned}
    columns = _column_labels(core)
    left = [{key: value for key, value in each.items() if key not in swept} for each in tuned]
    return Labels(rows, columns, _tuning_notes(left, rows, columns))


def natural_order(label: str) -> list[Any]:
    """Return a key by which `clusters=4` comes before `clusters=10`."""
    return [(0, float(part), "") if _NUMBER.fullmatch(part) else (1, 0.0, part) for part in _NUMBER.split(label)]


_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def _settings(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not _below(key, _NO_SETTING)}


def _row_labels(configs: Sequence[Config], keys: list[dict[str, Any]]) -> list[str]:
    names = _short_names([config.method.name for config in configs])
    bases = ["+".join([name, *each.get("method.addons", [])]) for name, each in zip(names, keys, strict=True)]
    left_out = ("method.name", "method.addons", "method.inherited")
    options = [
        {key: value for key, value in each.items() if key.startswith("method.") and not _below(key, left_out)}
        for each in keys
    ]
    return _told_apart(bases, options, " ")


def _column_labels(settings: list[dict[str, Any]]) -> list[str]:
    sources = _short_names([str(each.get("data.source")) for each in settings])
    kinds = _short_names([str(each.get("partition.kind")) for each in settings])
    bases = [f"{source}, {kind}" for source, kind in zip(sources, kinds, strict=True)]
    others = [{key: value for key, value in each.items() if key not in _KINDS} for each in settings]
    return _told_apart(bases, others, ", ")


def _told_apart(bases: list[str], keys: list[dict[str, Any]], separator: str) -> list[str]:
    """Add to each base the keys in which those with the same base differ, by the last word of their names."""
    plain = {key: key.removesuffix(".name") for each in keys for key in each}
    last = Counter(name.rpartition(".")[2] for name in plain.values())

    def short(key: str) -> str:
        word = plain[key].rpartition(".")[2]
        return word if last[word] == 1 else plain[key]

    labels = []
    for base, mine in zip(bases, keys, strict=True):
        alike = [other for other_base, other in zip(bases, keys, strict=True) if other_base == base]
        parts = [f"{short(key)}={_shown(key, mine[key])}" for key in _varying(alike) if key in mine]
        labels.append(separator.join([base, ", ".join(parts)]) if parts else base)
    return labels


def _short_names(names: list[str]) -> list[str]:
    """Shorten import paths to their class or function, where that tells them apart."""
    short = {name: name.rpartition(":")[2] for name in names}
    return [short[n] if sum(s == short[n] for s in short.values()) == 1 else n for n in names]


def _varying(all_keys: Iterable[dict[str, Any]]) -> list[str]:
    every = list(all_keys)
    names = {key: None for each in every for key in each}
    return [key for key in names if len({_hashable(each.get(key)) for each in every}) > 1]


def _has_several(key: str, tuned: list[dict[str, Any]], cells: Iterable[Hashable]) -> bool:
    """Whether one cell of the table holds several values of a key."""
    values = defaultdict(set)
    for cell, each in zip(cells, tuned, strict=True):
        values[cell].add(_hashable(each.get(key)))
    return any(len(found) > 1 for found in values.values())


def _tuning_notes(tuned: list[dict[str, Any]], rows: list[str], columns: list[str]) -> list[str]:
    notes: dict[str, None] = {}
    for column in dict.fromkeys(columns):
        here = [number for number, name in enumerate(columns) if name == column]
        for key in _varying([tuned[number] for number in here]):
            values = {rows[number]: tuned[number].get(key) for number in here}
            words = ", ".join(f"{_shown(key, values[row])} ({row})" for row in sorted(values, key=natural_order))
            notes[f"{key} is not the same for all methods in {column}: {words}"] = None
    return list(notes)


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "none"
    return PurePath(str(value)).stem if key == "data.path" else str(value)


def _below(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _hashable(value: Any) -> Hashable:
    return repr(value)


def _frozen(keys: dict[str, Any]) -> Hashable:
    return frozenset((key, _hashable(value)) for key, value in keys.items())
