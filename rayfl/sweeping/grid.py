"""The grid of a sweep: axes of settings, in the `sweep` section of a file or on the command line, and their product."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfl.config import Config
from rayfl.config.loading import config_tree, parsed_overrides
from rayfl.errors import InputError, shown

#: More runs than this in one sweep must be a typing error, such as seed=0..99999.
MOST_RUNS = 10_000
_MOST_NAME = 120
_RANGE = re.compile(r"\s*(\d{1,18})\.\.(\d{1,18})\s*")
#: Sections of a config: an entry `{name: fedavg}` of the axis `method` is this section's value, not a group of keys.
_SECTIONS = (
    "data",
    "partition",
    "model",
    "method",
    "local",
    "participation",
    "arrive",
    "evaluate",
    "ray",
    "state",
    "output",
)


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its folder's name, and the keys in which it differs from the other runs."""

    name: str
    overrides: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What all runs of a sweep share, and one point per run."""

    common: dict[str, Any]
    overrides: dict[str, Any]
    points: list[Point]


def read_grid(
    given: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    sets: str | Sequence[str] = (),
) -> Grid:
    """Read a config whose `sweep` section holds axes, with overrides; an override with several values is an axis too.

    >>> grid = read_grid({"sweep": {"method.name": ["fedavg", "local"]}}, ["seed=0..2", "rounds=5"])
    >>> [point.name for point in grid.points][:3], grid.overrides
    (['fedavg-seed0', 'fedavg-seed1', 'fedavg-seed2'], {'rounds': 5})
    """
    tree = config_tree(given, sets=sets)
    axes = _axes_of(tree.pop("sweep", None))
    common: dict[str, Any] = {}
    for key, values in _given_values(overrides):
        if len(values) > 1 or key in axes:
            axes[key] = values
        else:
            common[key] = values[0]
    count = 1
    for entries in axes.values():
        count *= len(entries)
    if count > MOST_RUNS:
        raise InputError(f"the sweep has {count:,} runs, more than {MOST_RUNS:,}: give its axes fewer values")
    entries_by_axis = [[(axis, _settings(axis, entry)) for entry in entries] for axis, entries in axes.items()]
    combined = [_combined(choice) for choice in itertools.product(*entries_by_axis)]
    return Grid(tree, common, _named(combined))


def _axes_of(section: Any) -> dict[str, list[Any]]:
    if section is None:
        return {}
    if isinstance(section, list):  # one axis, whose entries are groups of keys
        section = {"group": section}
    if not isinstance(section, dict):
        raise InputError(f"sweep={shown(section)}: write keys with lists of values, such as seed: [0, 1, 2]")
    axes = {}
    for key, values in section.items():
        if isinstance(values, str) and (numbers := _range(values)):
            values = numbers
        if not isinstance(values, list) or not values:
            raise InputError(f"sweep.{key}={shown(values)}: write a list of values, such as [0, 1, 2], or a range 0..4")
        axes[str(key)] = values
    return axes


def _given_values(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Return the values of each override: separated by commas in text, a list in Python."""
    if isinstance(overrides, Mapping):
        return [(key, _several(value)) for key, value in overrides.items()]
    found = []
    for word in overrides:
        key, sign, text = word.partition("=")
        parts = _range(text) or _split(text)
        values = parts if sign and isinstance(parts[0], int) else None
        found.append((key.strip(), values or [parsed_overrides([f"{key}{sign}{part}"])[0][1] for part in parts]))
    return found


def _several(value: Any) -> list[Any]:
    if isinstance(value, range):
        return list(value)
    if isinstance(value, str) and (numbers := _range(value)):
        return numbers
    return value if isinstance(value, list) and value else [value]


def _range(text: str) -> list[Any]:
    """Return the integers of `0..4`, both ends included; an empty list if the text is not a range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    if last < first or last - first >= MOST_RUNS:
        raise InputError(f"{text.strip()} is no range of at most {MOST_RUNS:,} numbers: write the smaller number first")
    return list(range(first, last + 1))


def _split(text: str) -> list[Any]:
    """Split at the commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _settings(axis: str, entry: Any) -> dict[str, Any]:
    """Return the keys that an entry of an axis sets: the axis itself, or the keys of a group."""
    if not isinstance(entry, Mapping) or axis in _SECTIONS:
        return {axis: entry}
    if not entry:
        raise InputError(f"sweep.{axis} has an empty group: write keys and values, such as {{method.name: fedavg}}")
    return {str(key): value for key, value in entry.items()}


def _combined(choice: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis, settings in choice:
        twice = [key for key in settings if key in found]
        if twice:
            raise InputError(f"sweep.{axis} sets {twice[0]}, which another axis sets too: remove it from one of them")
        found |= settings
    return found


def _named(combined: list[dict[str, Any]]) -> list[Point]:
    """Give each run a folder name made from its settings; the same settings always give the same name."""
    texts = [json.dumps(settings, sort_keys=True, default=str) for settings in combined]
    for text, times in Counter(texts).items():
        if times > 1:
            raise InputError(f"the sweep has the same run {times} times, {shown(text)}: remove the repeated values")
    names = ["-".join(_short(key, value) for key, value in settings.items()) or "run" for settings in combined]
    often = Counter(name.lower() for name in names)
    points = []
    for name, text, settings in zip(names, texts, combined, strict=True):
        if often[name.lower()] > 1 or len(name) > _MOST_NAME:
            name = f"{name[:_MOST_NAME]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        points.append(Point(name, settings))
    return points


def _short(key: str, value: Any) -> str:
    """Return a setting as part of a folder's name, without '=': on a command line, that would look like an override."""
    last = key.rpartition(".")[2]
    if isinstance(value, Mapping):
        return "-".join(_short(str(inner), each) for inner, each in value.items())
    text = ".".join(str(each) for each in value) if isinstance(value, list) else str(value).rpartition(":")[2]
    text = re.sub(r"[^A-Za-z0-9_.+-]+", ".", text).strip(".")
    if last in ("name", "source", "kind"):
        return text
    return f"{last}{text}" if last == "seed" else f"{last}_{text}"
