"""How overrides, and later layers of a config, change the keys that are already there."""

from collections.abc import Iterable, Mapping
from typing import Any

from rayfl.config.method import MethodConfig
from rayfl.config.schema import Config
from rayfl.config.union import OWN, members, union_key
from rayfl.errors import InputError, shown
from rayfl.input_tree import check_tree


def override(tree: dict[str, Any], changes: Iterable[tuple[str, Any]]) -> None:
    """Set dotted keys in a tree; options of a kind, source or method that is replaced no longer count.

    >>> tree = {"local": {"steps": 5, "lr": 0.1}, "partition": {"kind": "dirichlet", "alpha": 0.2, "clients": 9}}
    >>> override(tree, [("local.epochs", 1), ("partition", {"kind": "iid"})])
    >>> tree
    {'local': {'lr': 0.1, 'epochs': 1}, 'partition': {'kind': 'iid', 'clients': 9}}
    """
    filed = {name: dict(tree[name]) for name in ("method", *_UNIONS) if isinstance(tree.get(name), dict)}
    for key, value in changes:
        _set(tree, key, value)
    check_tree(tree)
    for name in _UNIONS:
        _leave_out_keys_of_the_former(tree, name, filed.get(name, {}))
    _inherit_options_of_the_former(tree, filed.get("method", {}))


#: Sections with one class per source or per kind.
_UNIONS = ("data", "partition")


def _leave_out_keys_of_the_former(tree: dict[str, Any], name: str, filed: dict[str, Any]) -> None:
    """If an override names another kind or source, leave out the file's keys that only the former one has."""
    union = Config.model_fields[name].annotation
    key, sections = union_key(union), members(union)
    node = tree.get(name)
    if not filed or not isinstance(node, dict) or node.get(key) == filed.get(key) or not isinstance(node.get(key), str):
        return
    own = next(n for n in sections if n.startswith(OWN))
    section = sections.get(own if ":" in node[key] else node[key])
    if section is not None:
        former = {k for k, v in filed.items() if k not in section.model_fields and node.get(k) == v}
        tree[name] = {k: v for k, v in node.items() if k not in former}


def _inherit_options_of_the_former(tree: dict[str, Any], filed: dict[str, Any]) -> None:
    """If an override names another method, keep the file's options apart: the new method takes those that it has."""
    node = tree.get("method")
    former = filed.get("name", MethodConfig().name)
    if not isinstance(node, dict) or node.get("name", MethodConfig().name) == former:
        return
    same = {k: v for k, v in node.items() if k not in MethodConfig.model_fields and k in filed and filed[k] == v}
    if same:
        before = node.get("inherited")
        rest = {k: v for k, v in node.items() if k not in same and k != "inherited"}
        tree["method"] = rest | {"inherited": (before if isinstance(before, dict) else {}) | same}


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key.

    A mapping is merged into the mapping that is there, an empty mapping replaces it, and a key removes the keys that it
    excludes.
    """
    *parents, last = dotted.split(".")
    node = tree
    for i, parent in enumerate(parents):
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            name = ".".join(parents[: i + 1])
            raise InputError(f"{dotted}={shown(value)}: {name} is a value ({shown(node)}), it has no keys below it")
    if isinstance(value, Mapping) and value and isinstance(node.get(last), dict):
        for key, inner in value.items():
            _set(node, f"{last}.{key}", inner)
        return
    rivals = _RIVALS.get(parents[-1], ()) if parents else ()
    if last in rivals and value is not None:
        for rival in rivals:
            node.pop(rival, None)
    node[last] = value


#: By section, the keys of which only one may be given.
_RIVALS = {
    "local": ("steps", "epochs"),
    "participation": ("fraction", "count"),
    "arrive": ("share", "count", "clients"),
    "ray": ("gpus_per_actor", "actors_per_gpu"),
}
