"""Short names for runs that are shown together: the method, its add-ons, and the config keys that differ.

Runs that differ only by their seed, or by how and where they were computed, get the same label.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
