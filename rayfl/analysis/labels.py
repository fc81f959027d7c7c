"""Short names for runs that are shown together.

First `labels`, for views, figures and the report; then `label_runs`, the rows and columns of a comparison: a row is a
method with its add-ons and options, a column is all else that a run depends on but its seeds.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rayfl.config import Config, dotted_keys

if TYPE_CHECKING:
    from rayfl.results import Run

#: Keys that never tell runs apart: repetitions, and where and how results are computed and written.
NOT_COMPARED = (
    "callbacks",
    "cpu_capability",
    "data.root",
    "evaluate.every",
    "federation",
    "name",
    "output",
    "partition.seed",
    "ray",
    "seed",
    "state",
    "training",
)
_IN_THE_NAME = ("method.addons", "method.inherited", "method.name")
_MOST = 40  # characters of a value


@dataclass(frozen=True)
class Label:
    """What a run is called among others: its method with options, and the setting that it was run in."""

    method: str  # such as "ifca+cam" or "fedac mu=0.1"
    setting: str = ""  # such as "alpha=0.1": keys that are not the method's

    def __str__(self) -> str:
        return f"{self.method} {self.setting}".strip()


def labels(runs: "Sequence[Run]", without: Collection[str] = ()) -> list[Label]:
    """Return a label per run. Config keys in `without` are left out, as is everything below them.

    A key of the method is shown if runs of the same method differ in it; any other key if any runs differ in it.
    """
    trees = [_flat(run.config.to_tree(), (*NOT_COMPARED, *without)) for run in runs]
    names = [_method_name(tree) for tree in trees]
    settings = _differing(trees, lambda key: not key.startswith("method."))
    options = {
        name: _differing([t for t, n in zip(trees, names, strict=True) if n == name], lambda k: k.startswith("method."))
        for name in set(names)
    }
    shown = settings | set().union(*options.values())
    return [
        Label(
            " ".join([name, *_written(tree, options[name] - set(_IN_THE_NAME), shown)]),
            " ".join(_written(tree, settings, shown)),
        )
        for tree, name in zip(trees, names, strict=True)
    ]


def config_value(run: "Run", key: str) -> Any:
    """Return the value of a dotted config key; None if the run's config does not have it.

    A list, or a section with keys of its own, is returned as text, so that it can stand in a table.
    """
    value: Any = run.config.to_tree()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return _text(value) if isinstance(value, list | Mapping) else value


def _flat(tree: Mapping[str, Any], without: Collection[str], above: str = "") -> dict[str, Any]:
    """Return dotted keys and their values."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{above}{name}"
        if key in without:
            continue
        if isinstance(value, Mapping) and value:
            found |= _flat(value, without, f"{key}.")
        else:
            found[key] = value
    return found


def _method_name(tree: Mapping[str, Any]) -> str:
    return "+".join([str(tree.get("method.name", "any method")), *tree.get("method.addons", [])])


def _differing(trees: Sequence[Mapping[str, Any]], wanted: Any) -> set[str]:
    """Return the wanted keys that do not have the same value in all trees; to have no value counts as one."""
    keys = {key for tree in trees for key in tree if wanted(key)}
    return {key for key in keys if len({_text(tree[key]) if key in tree else None for tree in trees}) > 1}


def _written(tree: Mapping[str, Any], keys: Collection[str], among: Collection[str]) -> list[str]:
    return [f"{_short(key, among)}={_text(tree[key])}" for key in sorted(keys) if key in tree]


def _short(key: str, among: Collection[str]) -> str:
    """Return the last part of a key, or all of it if another key ends in the same."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in among) == 1 else key


def _text(value: Any) -> str:
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(_text, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{k}: {_text(v)}' for k, v in value.items())}}}"
    else:
        text = str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


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
    return _told_apart(bases, options, " ", lambda key: key.removeprefix("method."))


def _column_labels(settings: list[dict[str, Any]]) -> list[str]:
    sources = _short_names([str(each.get("data.source")) for each in settings])
    kinds = _short_names([str(each.get("partition.kind")) for each in settings])
    bases = [f"{source}, {kind}" for source, kind in zip(sources, kinds, strict=True)]
    others = [{key: value for key, value in each.items() if key not in _KINDS} for each in settings]
    names = {key for each in others for key in each}

    def short(key: str) -> str:
        plain = key.removesuffix(".name")
        last = plain.rpartition(".")[2]
        return last if sum(name.removesuffix(".name").rpartition(".")[2] == last for name in names) == 1 else plain

    return _told_apart(bases, others, ", ", short)


def _told_apart(bases: list[str], keys: list[dict[str, Any]], separator: str, short: Any) -> list[str]:
    """Add to each base the keys in which those with the same base differ."""
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
