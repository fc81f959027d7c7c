"""Short names for runs that are shown together: the method, its add-ons, and the config keys that differ.

Runs that differ only by their seeds, or by how and where they were computed, have the same name. Figures and tables
follow one rule for what is compared and how a key and its value are written; how tables sort runs into rows and columns
is in `table_labels`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rayfl.config import Config, dotted_keys

if TYPE_CHECKING:
    from rayfl.results import Run

#: Keys that are never part of a label: names and seeds, and where and how results are computed and written.
NOT_COMPARED = (
    "arrive.tune",
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

#: Dotted keys of a config and their values.
Keys = dict[str, Any]


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
    configs = [run.config for run in runs]
    options, settings = zip(*(compared_keys(config, without) for config in configs), strict=True) if runs else ((), ())
    names = method_names(configs, without)
    told = {name: varying([mine for mine, n in zip(options, names, strict=True) if n == name]) for name in set(names)}
    differing = varying(settings)
    write = Written([{**mine, **others} for mine, others in zip(options, settings, strict=True)])
    write.among({*differing, *(key for keys in told.values() for key in keys)})
    return [
        Label(" ".join([name, *write.pairs(mine, told[name])]), " ".join(write.pairs(others, differing)))
        for name, mine, others in zip(names, options, settings, strict=True)
    ]


def config_value(run: "Run", key: str) -> Any:
    """Return the value of a dotted config key; None if the run's config does not have it.

    A list, or a section with keys of its own, is returned as text, so that it fits into a cell of a table.
    """
    value: Any = run.config.to_tree()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return _cut(_text(value)) if isinstance(value, list | Mapping) else value


def compared_keys(config: Config, without: Collection[str] = ()) -> tuple[Keys, Keys]:
    """Return the keys that tell runs apart: the method's options, and all others."""
    left_out = (*NOT_COMPARED, *_IN_THE_NAME, *without)
    keys = {key: value for key, value in dotted_keys(config.to_tree()).items() if not below(key, left_out)}
    options = {key: value for key, value in keys.items() if key.startswith("method.")}
    return options, {key: value for key, value in keys.items() if key not in options}


def method_names(configs: Sequence[Config], without: Collection[str] = ()) -> list[str]:
    """Return the method of each config with its add-ons, such as `ifca+cam`; parts in `without` are left out."""
    names = short_names([config.method.name for config in configs])
    names = ["any method" if below("method.name", without) else name for name in names]
    addons = [[] if below("method.addons", without) else config.method.options.get("addons", []) for config in configs]
    return ["+".join([name, *more]) for name, more in zip(names, addons, strict=True)]


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten each import path to its class or function, unless another name would then be the same.

    >>> short_names(["fedavg", "mine:Median", "a:Net", "b:Net"])
    ['fedavg', 'Median', 'a:Net', 'b:Net']
    """
    short = {name: name.rpartition(":")[2] for name in names}
    return [short[n] if sum(s == short[n] for s in short.values()) == 1 else n for n in names]


def varying(all_keys: Iterable[Keys]) -> list[str]:
    """Return the keys whose values differ, in their order; a missing key counts as None."""
    every = list(all_keys)
    names = {key: None for each in every for key in each}
    return [key for key in names if len({repr(each.get(key)) for each in every}) > 1]


def below(key: str, names: Collection[str]) -> bool:
    """Whether a key is one of `names`, or inside one of them."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


class Written:
    """How keys and values are written: as short as possible, but different among these configs."""

    def __init__(self, all_keys: Sequence[Keys]) -> None:
        self._values: dict[str, dict[str, Any]] = {}
        for each in all_keys:
            for key, value in each.items():
                self._values.setdefault(key, {})[repr(value)] = value
        self._among: Collection[str] = set(self._values)

    def among(self, keys: Collection[str]) -> "Written":
        """Shorten the names of keys as if only these keys were shown."""
        self._among = keys
        return self

    def pairs(self, mine: Keys, keys: Iterable[str]) -> list[str]:
        """Return `name=value` for those of the keys that a config has."""
        return [f"{self.name(key)}={self.value(key, mine[key])}" for key in keys if key in mine]

    def name(self, key: str) -> str:
        """Return the last word of a key, or the whole key if another shown key ends in the same word."""
        plain = key.removesuffix(".name")
        last = plain.rpartition(".")[2]
        others = [other.removesuffix(".name").rpartition(".")[2] for other in self._among if other != key]
        return plain if last in others else last

    def value(self, key: str, value: Any) -> str:
        """Return a value in short, or in full if two values of the key would look alike."""
        if value is None:
            return "none"
        short = [_short(key, other) for other in self._values.get(key, {}).values()]
        return _short(key, value) if len(set(short)) == len(short) else _text(value)


def _short(key: str, value: Any) -> str:
    return _cut(PurePath(value).stem if key == "data.path" and isinstance(value, str) else _text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_text(v)}' for k, v in value.items())}}}"
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
