"""Transforms to and from plain data, for files of partitions and of saved models. Nothing is unpickled.

A file may come from somebody else: its content is checked like a config, and code that the file names is imported only
if the reader allows that code by its name.
"""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rayfl.config.feature_parts import AnyFeature
from rayfl.data.dataset import Step, Transform
from rayfl.data.partition.parts.features import FEATURES, Feature, OwnFeature
from rayfl.errors import InputError

_KEYS = ("turns", "invert", "labels", "degrees", "steps")
_MOST_SEED = 2**63


def plain_transform(transform: Transform) -> dict[str, Any]:
    """Return a transform as numbers, text, lists and mappings.

    >>> plain_transform(Transform(turns=1))
    {'turns': 1, 'invert': False, 'labels': None, 'degrees': 0.0}
    """
    labels = None if transform.labels is None else [int(label) for label in transform.labels]
    plain: dict[str, Any] = {
        "turns": int(transform.turns),
        "invert": bool(transform.invert),
        "labels": labels,
        "degrees": float(transform.degrees),
    }
    return plain | ({"steps": [_plain_step(step) for step in transform.steps]} if transform.steps else {})


def read_transform(plain: Any, functions: Collection[str] | None = ()) -> Transform:
    """Return the transform that plain data describe; ValueError if they describe none.

    `functions` are the import paths of the code that the data may name; None allows all. Other code is refused with an
    InputError.
    """
    if not isinstance(plain, dict) or not set(plain) <= set(_KEYS):
        raise ValueError("a transform has unknown keys")
    turns, invert = plain.get("turns", 0), plain.get("invert", False)
    degrees, labels = plain.get("degrees", 0.0), plain.get("labels")
    good = type(turns) is int and abs(turns) <= 4 and type(invert) is bool
    if not good or not isinstance(degrees, int | float) or isinstance(degrees, bool) or not -360 <= degrees <= 360:
        raise ValueError("a transform has impossible values")
    if labels is not None and not (
        isinstance(labels, list) and all(type(label) is int for label in labels) and _is_order(labels)
    ):
        raise ValueError("a transform's labels are no order of the classes")
    steps = plain.get("steps", [])
    if not isinstance(steps, list):
        raise ValueError("a transform's steps are no list")
    order = None if labels is None else tuple(labels)
    return Transform(turns, invert, order, float(degrees), tuple(_read_step(step, functions) for step in steps))


def named_functions(transforms: Collection[Transform]) -> list[str]:
    """Return the import paths of the code that transforms need."""
    return sorted({step.path for t in transforms for step in t.steps if isinstance(step, OwnFeature)})


def _is_order(labels: list[int]) -> bool:
    return sorted(labels) == list(range(len(labels)))


def _plain_step(step: Step) -> dict[str, Any]:
    assert isinstance(step, Feature)
    if isinstance(step, OwnFeature):
        return {"kind": step.path, "options": _listed(dict(step.options))}
    return {"kind": step.name, **_listed(asdict(step))}


def _read_step(plain: Any, functions: Collection[str] | None) -> Feature:
    if not isinstance(plain, dict) or not isinstance(plain.get("kind"), str):
        raise ValueError("a step of a transform has no kind")
    keys = {key: value for key, value in plain.items() if key != "kind"}
    kind = plain["kind"]
    if ":" in kind:
        if functions is not None and kind not in functions:
            raise InputError(
                f"it names code to be imported, {kind}: if you trust it, name it in partition.functions=[{kind}]"
            )
        options = keys.get("options", {})
        if set(keys) - {"options"} or not isinstance(options, dict):
            raise ValueError(f"the step {kind} has no mapping of options")
        return OwnFeature(kind, tuple(sorted((str(name), _frozen(value)) for name, value in options.items())))
    if kind not in FEATURES:
        raise ValueError(f"there is no step {kind}")
    feature = FEATURES[kind]
    drawn: dict[str, Any] = {}
    if feature.seeded != "no":
        drawn["seed"] = keys.pop("seed", None)
        if type(drawn["seed"]) is not int or not 0 <= drawn["seed"] < _MOST_SEED:
            raise ValueError(f"the step {kind} has no seed")
    try:
        values = TypeAdapter(AnyFeature).validate_python({"kind": kind, **keys}).values
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"the step {kind}: {first['msg']}") from None
    if set(values) != set(keys) or any(len(value) != 1 for value in values.values()):
        raise ValueError(f"the step {kind} must have one value for each of its keys")
    return feature(**{name: _frozen(value[0]) for name, value in values.items()}, **drawn)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(inner) for inner in value) if isinstance(value, list) else value
