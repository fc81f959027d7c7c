"""A config in layers: the files that it builds on (`base`), its own keys, and the sets that a user chose by name.

A later layer changes an earlier one as overrides on the command line do. Axes of a sweep are replaced by name; null
removes an axis.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayfl.config.overriding import override
from rayfl.config.schema import Config
from rayfl.errors import InputError, closest, shown
from rayfl.input_tree import MOST_CHARACTERS, check_tree, load_yaml

#: The most files that are read for one config; more must be a mistake.
MOST_FILES = 64
_SET_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")


def read_layers(given: str | Path | Mapping[str, Any] | Config | None, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of a config: those of its bases, its own, and those of the chosen sets, the later ones on top.

    The names of the sets are appended to the config's name, so that results of different sets do not mix.
    """
    place = f"config file {given}" if isinstance(given, str | Path) else "the config"
    if isinstance(given, str | Path):
        layers = _Reader().read(Path(given))
    else:
        tree = _tree(given)
        if "base" in tree:
            raise InputError(f"base={shown(tree['base'])}: only a config file can build on others, write it to one")
        layers = _Layers.of(tree, place)
    for name in dict.fromkeys(sets):
        _choose(layers, name, place)
    return layers.tree


@dataclass
class _Layers:
    """The keys so far, and what each set changes, in the order of the files."""

    tree: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: dict[str, Any], place: str) -> "_Layers":
        """Separate the sets of one file from its other keys."""
        named = tree.pop("sets", None)
        if named is None:
            return cls(tree)
        if not isinstance(named, dict):
            raise InputError(f"{place}: sets={shown(named)}: write names with keys, such as small: {{rounds: 5}}")
        for name, keys in named.items():
            if not _SET_NAME.fullmatch(str(name)):
                raise InputError(f"{place}: sets has the name {shown(name)}: use letters, digits and '_'")
            if not isinstance(keys, dict):
                raise InputError(f"{place}: sets.{name}={shown(keys)}: write keys, such as {{rounds: 5}}")
            if wrong := {"base", "sets"} & keys.keys():
                raise InputError(f"{place}: sets.{name} cannot have the key '{wrong.pop()}': write it outside of sets")
        return cls(tree, {str(name): [keys] for name, keys in named.items()})

    def add(self, later: "_Layers") -> None:
        """Put another config on top of this one."""
        _add_keys(self.tree, later.tree)
        for name, changes in later.sets.items():
            self.sets.setdefault(name, []).extend(changes)


class _Reader:
    """Reads a config file and the files that it builds on."""

    def __init__(self) -> None:
        self._files = 0

    def read(self, path: Path, inside: tuple[Path, ...] = ()) -> _Layers:
        self._files += 1
        if path.resolve() in inside:
            names = " -> ".join(str(file) for file in (*inside[inside.index(path.resolve()) :], path.resolve()))
            raise InputError(f"config files build on each other in a circle: {names}: remove one `base`")
        if self._files > MOST_FILES:
            raise InputError(f"config file {(inside or (path,))[0]} builds on more than {MOST_FILES} files: use fewer")
        tree = _read_file(path)
        bases = _bases(tree.pop("base", None), path)
        own = _Layers.of(tree, f"config file {path}")
        if not bases:
            return own
        layers = _Layers()
        for base in bases:
            layers.add(self.read(base, (*inside, path.resolve())))
        layers.add(own)
        return layers


def _bases(given: Any, path: Path) -> list[Path]:
    names = [given] if isinstance(given, str) else given
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"config file {path}: base={shown(given)}: name a file, or a list of files")
    found = [path.parent / name for name in names]
    missing = [str(base) for base in found if not base.is_file()]
    if missing:
        raise InputError(f"config file {path}: base names {missing[0]}, which is not there: paths begin at this file")
    return found


def _choose(layers: _Layers, name: str, place: str) -> None:
    if name not in layers.sets:
        there = f"it has {', '.join(sorted(layers.sets))}" if layers.sets else "it has no sets"
        raise InputError(f"{place} has no set {shown(name)}{closest(name, sorted(layers.sets))}: {there}")
    before = layers.tree.get("name")
    for changes in layers.sets[name]:
        _add_keys(layers.tree, changes)
    if before is not None and layers.tree.get("name") == before:
        layers.tree["name"] = f"{before}-{name}"


def _add_keys(tree: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Put later keys on top; dots in the name of a sweep's axis do not separate keys, so axes are replaced whole."""
    keys = {str(key): value for key, value in deepcopy(dict(later)).items()}
    if "sweep" in keys:
        axes, before = keys.pop("sweep"), tree.get("sweep")
        if isinstance(axes, dict):
            before = before if isinstance(before, dict) else {}
            axes = {axis: values for axis, values in (before | axes).items() if values is not None}
        tree["sweep"] = axes
    override(tree, keys.items())
    if tree.get("sweep", True) in (None, {}):
        del tree["sweep"]


def _tree(given: Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Config):
        return given.model_dump(exclude_none=True)
    if isinstance(given, Mapping):
        check_tree(given)
        return deepcopy(dict(given))
    raise InputError(
        f"a {type(given).__name__} is no config: give a YAML file, a mapping or a Config; data go into"
        " rayfl.run(data=...)"
    )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)  # a device or a pipe may have no end
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError(f"config file {path} cannot be read: {reason}") from None
    tree = load_yaml(text, f"config file {path}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"config file {path} must hold keys such as 'rounds: 60', not a {type(tree).__name__}")
    return tree
