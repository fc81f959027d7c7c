"""A config as a flat table of settings, with secrets hidden; and which settings differ between runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rayfl.config import Config

#: Keys about where a run computes and what it stores. They do not change its numbers.
_WITHOUT_EFFECT = ("name", "ray", "state", "output", "cpu_capability")
_SECRET = re.compile(r"(^|[._-])(key|secret|token|password|passwd|credentials?|signature)($|[._-])", re.IGNORECASE)
HIDDEN = "(hidden)"


def flat_settings(config: Config) -> dict[str, Any]:
    """Return the config by dotted key, as it is saved with the run; values under keys that name a secret are hidden.

    >>> flat_settings(Config(seed=3))["seed"]
    3
    """
    return {key: HIDDEN if _SECRET.search(key) else value for key, value in _leaves(config.to_tree())}


def differing(settings: Sequence[Mapping[str, Any]], shown: Sequence[str] = ()) -> list[str]:
    """Return the keys whose values differ between the runs, except those that are `shown` anyway.

    Options of a method, a data source or a partition kind are compared only between runs that use the same one.

    >>> differing([{"a": 1, "b": 2, "name": "x"}, {"a": 1, "b": 3, "c": 4, "name": "y"}])
    ['b', 'c']
    >>> differing([{"method.name": "fedac", "method.mu": 1.0}, {"method.name": "fedavg"}])
    ['method.name']
    """
    keys = dict.fromkeys(key for each in settings for key in each)
    return [
        key
        for key in keys
        if key not in shown and key.partition(".")[0] not in _WITHOUT_EFFECT and _differs(key, settings)
    ]


#: Sections whose options depend on a choice, and the keys that make this choice.
_KINDS = {"method": ("method.name", "method.addons"), "data": ("data.source",), "partition": ("partition.kind",)}
_MISSING = object()


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    kinds = _KINDS.get(key.partition(".")[0], ())
    first: dict[str, Any] = {}
    for each in settings:
        kind = "" if key in kinds else repr([each.get(name) for name in kinds])
        value = each.get(key, _MISSING)
        if first.setdefault(kind, value) != value:
            return True
    return False


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            leaves += _leaves({str(at): item for at, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves
