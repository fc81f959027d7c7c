"""Input as a tree of plain values: strict YAML, and limits that are checked before any other code uses the values.

The meaning of the keys is in `config`. This module only makes sure that a tree is small, finite and of plain values.
"""

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from rayfl.errors import InputError, shown

MOST_CHARACTERS = 2**20  # of a YAML file
MOST_DEPTH = 32
MOST_VALUES = 200_000  # with every alias written out
MOST_TEXT = 4096
LARGEST_INTEGER = 2**63 - 1
LARGEST_FLOAT = 1e30  # networks compute in float32, which ends at 3.4e38
_MOST_DIGITS = 400  # of a number in YAML

_TAG = "tag:yaml.org,2002:"
_KEY_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null")}


def load_yaml(text: str, where: str) -> Any:
    """Read YAML as plain values: no tags, no duplicate keys, no dates, no aliases that expand to a huge tree.

    >>> load_yaml("lr: 1e-3\\nday: 2020-01-01\\ntime: 1:30", "the config")
    {'lr': 0.001, 'day': '2020-01-01', 'time': '1:30'}
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{where} is not valid YAML: it has {len(text):,} characters, at most {MOST_CHARACTERS:,} are read"
        )
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise InputError(f"{where} is not valid YAML{at}: {problem}") from None


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Write YAML that `load_yaml` reads back as the same values, with the keys in the same order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def check_tree(tree: Any, key: str = "") -> None:
    """Refuse values that no key accepts: infinities, huge numbers, very long text, very deep nesting."""
    faults = list(_faults(tree, key))
    if faults:
        raise InputError(*faults)


def expanded(path: str) -> Path:
    """Return the path with `~` replaced by the home folder."""
    if "://" in path:
        raise InputError(f"{path} is a URI: data are read from local files and folders, copy them there")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: there is no home folder of that user; write the path out") from None


def _faults(tree: Any, key: str) -> Iterator[str]:
    """Yield a line per fault. Not recursive, because the tree may be deeper than Python's stack allows."""
    seen, waiting = 0, [(key, tree, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        seen += 1
        if depth > MOST_DEPTH or seen > MOST_VALUES:
            what = f"more than {MOST_VALUES:,} values" if seen > MOST_VALUES else f"nested more than {MOST_DEPTH} deep"
            yield f"{name[:MOST_DEPTH]}...: the input is too large, it has {what}"
            return
        if isinstance(value, Mapping):
            for inner in value:
                if fault := _text_fault(inner):
                    yield f"key {shown(inner)}{f' in {name}' if name else ''} {fault}"
            waiting += [(f"{name}.{k}" if name else str(k), v, depth + 1) for k, v in value.items() if _is_good(k)]
        elif isinstance(value, list | tuple):
            waiting += [(f"{name}.{i}", v, depth + 1) for i, v in enumerate(value)]
        elif isinstance(value, str):
            if fault := _text_fault(value):
                yield f"{name}={shown(value)} {fault}"
        elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            yield f"{name}={shown(value)} is too large: whole numbers go up to 2**63 - 1"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{name}={value} is not a finite number: give a number"
        elif isinstance(value, float) and abs(value) > LARGEST_FLOAT:
            yield f"{name}={value} is too large: numbers go up to {LARGEST_FLOAT:g}"
        elif getattr(value, "shape", ()) != ():
            of_data = name.partition(".")[0] == "data"
            cure = "data from Python go into rayfl.run(data=...)" if of_data else "write plain numbers and text"
            yield f"{name} is a {type(value).__name__}, which no config can hold: {cure}"


def _text_fault(text: Any) -> str | None:
    if not isinstance(text, str):
        return f"is of type {type(text).__name__}: keys are text"
    if len(text) > MOST_TEXT:
        return f"is too long: text has at most {MOST_TEXT} characters"
    if "\0" in text:
        return "holds a NUL character: remove it"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "is not valid Unicode: write it in UTF-8"
    return None


def _is_good(key: Any) -> bool:
    return _text_fault(key) is None


class _StrictLoader(yaml.SafeLoader):
    """Reads YAML strictly: 1e-3 is a number; dates, times such as 1:30, and 010 are text; keys are text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._weights: dict[int, int] = {}  # values in each node, aliases written out

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose a node, and limit its depth and its size."""
        mark = self.peek_event().start_mark
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ConstructorError(None, None, f"it is nested more than {MOST_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._weights:
            raise ConstructorError(None, None, "an alias points to a value that contains it", mark)
        if not is_alias:
            parts = getattr(node, "value", ())
            if isinstance(node, MappingNode):
                parts = [part for pair in parts for part in pair]
            weight = 1 + sum(self._weights[id(part)] for part in parts if isinstance(part, Node))
            if weight > MOST_VALUES:
                raise ConstructorError(None, None, f"with its aliases it has more than {MOST_VALUES:,} values", mark)
            self._weights[id(node)] = weight
        return node

    def construct_mapping(self, node: Node, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping with unique keys that are always text: `on` is a key, not a boolean."""
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "a mapping is expected here", node.start_mark)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise ConstructorError(
                    None, None, f"the key {shown(key.value)} is there twice: remove one", key.start_mark
                )
            seen.add(key.value)
        self.flatten_mapping(node)
        pairs = {}
        for key, value in node.value:
            text = key.value if key.tag in _KEY_TAGS else self.construct_object(key, deep=True)
            pairs[text] = self.construct_object(value, deep=deep)
        return pairs

    def construct_number(self, node: ScalarNode) -> int | float:
        """Construct a number; refuse text that is not a number, and numbers with too many digits."""
        kind = node.tag.removeprefix(_TAG)
        try:
            if len(node.value) <= _MOST_DIGITS:
                return self.construct_yaml_int(node) if kind == "int" else self.construct_yaml_float(node)
        except (ValueError, IndexError):
            pass
        too_long = f" of at most {_MOST_DIGITS} digits" if len(node.value) > _MOST_DIGITS else ""
        raise ConstructorError(None, None, f"{shown(node.value)} is no {kind}{too_long}", node.start_mark)

    def construct_boolean(self, node: ScalarNode) -> bool:
        """Construct true or false."""
        try:
            return self.construct_yaml_bool(node)
        except KeyError:
            raise ConstructorError(None, None, f"{shown(node.value)} is no bool", node.start_mark) from None


# Only the types that a config can use. Everything else (dates, sets, binary data, Python objects) is an unknown tag.
_StrictLoader.yaml_constructors = {
    **{tag: maker for tag, maker in yaml.SafeLoader.yaml_constructors.items() if tag is None},
    **{_TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind] for kind in ("null", "str", "seq", "map")},
    _TAG + "int": _StrictLoader.construct_number,
    _TAG + "float": _StrictLoader.construct_number,
    _TAG + "bool": _StrictLoader.construct_boolean,
}
_StrictLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in pairs if tag in (_TAG + "bool", _TAG + "null", _TAG + "merge")]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(
    _TAG + "int",
    re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"),
    list("-+0123456789"),
)
_StrictLoader.add_implicit_resolver(
    _TAG + "float",
    re.compile(
        r"^[-+]?(\d[\d_]*\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either this loader or plain YAML 1.1 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write aliases: repeat the value instead."""
        return True


for letter, pairs in _StrictLoader.yaml_implicit_resolvers.items():
    for tag, pattern in pairs:
        _Dumper.add_implicit_resolver(tag, pattern, [letter])
