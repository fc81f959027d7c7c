"""Rows and columns of a comparison, written by the rule of `labels`.

A row is a method with its add-ons and options. A column is everything else that a run depends on, except the seeds.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.analysis.labels import Keys, Written, below, compared_keys, method_names, short_names, varying
from rayfl.config import Config

#: Keys that may be tuned for each method. They make columns of their own only if one method has several values of them.
_TUNED = ("local", "participation", "partition.public")
_KINDS = ("data.source", "partition.kind")


@dataclass(frozen=True)
class TableLabels:
    """The row and the column of each run, in the order of the runs, and what was tuned for single methods."""

    rows: list[str]
    columns: list[str]
    notes: list[str]


def table_labels(configs: Sequence[Config]) -> TableLabels:
    """Name the row and the column of each run."""
    keys = [compared_keys(config) for config in configs]
    rows = _told_apart(method_names(configs), [options for options, _ in keys], " ")
    tuned = [{key: value for key, value in settings.items() if below(key, _TUNED)} for _, settings in keys]
    core = [{key: value for key, value in settings.items() if not below(key, _TUNED)} for _, settings in keys]
    cells = list(zip(rows, map(_frozen, core), strict=True))
    swept = [key for key in varying(tuned) if _has_several(key, tuned, cells)]
    for mine, all_tuned in zip(core, tuned, strict=True):
        mine |= {key: all_tuned[key] for key in swept if key in all_tuned}
    columns = _column_labels(core)
    left = [{key: value for key, value in each.items() if key not in swept} for each in tuned]
    return TableLabels(rows, columns, _tuning_notes(left, rows, columns))


def natural_order(label: str) -> list[Any]:
    """Return a key by which `clusters=4` comes before `clusters=10`."""
    return [(0, float(part), "") if _NUMBER.fullmatch(part) else (1, 0.0, part) for part in _NUMBER.split(label)]


_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def _column_labels(settings: list[Keys]) -> list[str]:
    sources = short_names([str(each.get("data.source")) for each in settings])
    kinds = short_names([str(each.get("partition.kind")) for each in settings])
    bases = [f"{source}, {kind}" for source, kind in zip(sources, kinds, strict=True)]
    others = [{key: value for key, value in each.items() if key not in _KINDS} for each in settings]
    return _told_apart(bases, others, ", ")


def _told_apart(bases: list[str], keys: list[Keys], separator: str) -> list[str]:
    """Add to each base name the keys in which runs with the same base name differ."""
    alike: dict[str, list[Keys]] = defaultdict(list)
    for base, mine in zip(bases, keys, strict=True):
        alike[base].append(mine)
    differing = {base: varying(all_mine) for base, all_mine in alike.items()}
    write = Written(keys)
    found = [", ".join(write.pairs(mine, differing[base])) for base, mine in zip(bases, keys, strict=True)]
    return [separator.join([base, pairs]) if pairs else base for base, pairs in zip(bases, found, strict=True)]


def _has_several(key: str, tuned: list[Keys], cells: Iterable[Hashable]) -> bool:
    """Whether one cell of the table holds several values of a key."""
    values = defaultdict(set)
    for cell, each in zip(cells, tuned, strict=True):
        values[cell].add(repr(each.get(key)))
    return any(len(found) > 1 for found in values.values())


def _tuning_notes(tuned: list[Keys], rows: list[str], columns: list[str]) -> list[str]:
    notes: dict[str, None] = {}
    write = Written(tuned)
    for column in dict.fromkeys(columns):
        here = [number for number, name in enumerate(columns) if name == column]
        for key in varying([tuned[number] for number in here]):
            values = {rows[number]: tuned[number].get(key) for number in here}
            words = ", ".join(f"{write.value(key, values[row])} ({row})" for row in sorted(values, key=natural_order))
            notes[f"{key} is not the same for all methods in {column}: {words}"] = None
    return list(notes)


def _frozen(keys: Keys) -> Hashable:
    return frozenset((key, repr(value)) for key, value in keys.items())
