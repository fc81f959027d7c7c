"""The columns of a table as features: numbers as they are, categories as one feature per value, lists side by side.

No column is left out silently, and no gap is filled unless the config says so.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from rayfl.errors import InputError

#: The most features that one column of categories may become.
_MOST_VALUES = 1000
#: The most columns that a message names.
_MOST_NAMES = 10

Missing = Literal["refuse", "mean"]


@dataclass(frozen=True)
class Features:
    """Float32 features (rows, features) and their names; `unused` are columns that became no feature."""

    inputs: np.ndarray
    names: tuple[str, ...]
    unused: tuple[str, ...] = ()


def features_of(
    table: Any, meta: set[str], categories: tuple[str, ...], missing: Missing, known: np.ndarray, where: str
) -> Features:
    """Return all columns except `meta` as features: lists if there are any, else numbers and categories in order.

    `known` marks the rows outside the source's test split, whose mean takes the place of missing numbers.
    """
    import pyarrow.types as types

    fields = [field for field in table.schema if field.name not in meta]
    lists = [field.name for field in fields if is_list(field.type)]
    named = [f.name for f in fields if f.name in categories or types.is_dictionary(f.type)]
    numbers = [f.name for f in fields if _is_number(f.type) or f.name in named]
    if not lists and not numbers:
        columns = ", ".join(f"{field.name} ({_kind(field.type)})" for field in fields[:_MOST_NAMES])
        raise InputError(
            f"{where} has no numeric column for features{f', only {columns}' if columns else ''}: add some, or name"
            " columns of categories in data.categories"
        )
    for field in fields:
        if field.name in lists and not _is_number(field.type.value_type):
            raise InputError(
                f"{where}: column '{field.name}' holds {field.type}: a list must hold numbers, not lists or text;"
                " flatten it"
            )
        if field.name not in lists and field.name not in numbers:
            raise InputError(f"{where}: {_not_numbers(field)}")
    parts = []
    for name in lists or numbers:
        column, place = table.column(name), f"{where}: column '{name}'"
        if name in lists:
            parts.append(_list_column(column, name, place))
        elif name in named:
            parts.append(_one_hot(column, name, missing, place))
        else:
            parts.append(_numbers(column, name, missing, known, place))
    inputs = np.concatenate([values for values, _ in parts], axis=1)
    names = tuple(name for _, names in parts for name in names)
    _refuse_gaps(inputs, names, bool(lists), where)
    return Features(inputs, names, tuple(name for name in numbers if lists))


def is_list(kind: Any) -> bool:
    """Whether a column of this Arrow type has a list in each row."""
    import pyarrow.types as types

    return types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind)


def is_text(kind: Any) -> bool:
    """Whether a column of this Arrow type has text in each row."""
    import pyarrow.types as types

    return types.is_string(kind) or types.is_large_string(kind)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _kind(kind: Any) -> str:
    import pyarrow.types as types

    return "text" if is_text(kind) else "nothing" if types.is_null(kind) else str(kind)


def _not_numbers(field: Any) -> str:
    """Say what a column holds, and what can be done about it."""
    import pyarrow.types as types

    name = field.name
    told = f"column '{name}' holds {_kind(field.type)}, not numbers"
    if types.is_null(field.type):
        return f"{told}: data.drop=[{name}] leaves it out"
    if types.is_temporal(field.type):
        return (
            f"{told}: make numbers of it before, such as days since a date, or month and weekday, or leave it out with"
            f" data.drop=[{name}]"
        )
    return (
        f"{told}: data.categories=[{name}] makes one feature per value of it, data.drop=[{name}] leaves it out, and"
        f" data.client={name} says that it names the clients"
    )


def _numbers(
    column: Any, name: str, missing: Missing, known: np.ndarray, where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the numbers; if gaps are allowed, the mean fills them, and a second feature marks them."""
    values = column.cast("float64", safe=False).to_numpy()
    gaps = np.isnan(values)
    if missing == "refuse" or not gaps.any():
        return _float32(values[:, None]), (name,)
    seen = values[known & ~gaps]
    if not len(seen):
        raise InputError(f"{where} has no value outside the test split: leave it out with data.drop=[{name}]")
    mean = math.fsum(seen) / len(seen) if np.isfinite(seen).all() else np.inf  # infinite numbers are refused later
    filled = np.where(gaps, mean, values)
    return _float32(np.stack([filled, gaps], axis=1)), (name, f"{name} is missing")


def _one_hot(column: Any, name: str, missing: Missing, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return one feature per value, 1 where a row has it: in the order of pandas' categories, else sorted.

    The values are those of all rows, since rows of the source's own test split are trained on too unless
    partition.test=official. If rows without a value are allowed, the last feature marks them.
    """
    values = column.to_pandas()
    gaps = values.isna().to_numpy()
    if gaps.any() and missing == "refuse":
        raise InputError(
            f"{where}: {int(gaps.sum())} rows have no value: fill them in or drop the rows, or use data.missing=mean"
        )
    if not isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(pd.CategoricalDtype(sorted(values[~gaps].unique())))
    found = values.cat.categories
    if len(found) > _MOST_VALUES:
        raise InputError(
            f"{where} has {len(found)} values, more than the {_MOST_VALUES} that may become features:"
            f" leave it out with data.drop=[{name}], or group its values"
        )
    names = [f"{name}={value}" for value in found] + [f"{name} is missing"] * bool(gaps.any())
    # A row without a value has the code -1, which is the index of the last feature.
    return np.eye(len(names), dtype=np.float32)[values.cat.codes.to_numpy()], tuple(names)


def _list_column(column: Any, name: str, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a column of equally long lists as a matrix."""
    rows = column.combine_chunks()
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    if rows.null_count or len(np.unique(lengths)) != 1 or lengths[0] == 0:
        raise InputError(f"{where} has missing lists or lists of different lengths: make every list as long")
    values = rows.flatten().cast("float64", safe=False).to_numpy(zero_copy_only=False).reshape(len(lengths), -1)
    return _float32(values), tuple(f"{name}[{i}]" for i in range(values.shape[1]))


def _float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused with the gaps
        return values.astype(np.float32)


def _refuse_gaps(inputs: np.ndarray, names: tuple[str, ...], in_lists: bool, where: str) -> None:
    finite = np.isfinite(inputs)
    if finite.all():
        return
    rows, places = np.flatnonzero(~finite.all(axis=1)), np.flatnonzero(~finite.all(axis=0))
    few = ", ".join(names[place] for place in places[:_MOST_NAMES]) + ", ..." * (len(places) > _MOST_NAMES)
    can_fill = not in_lists and not np.isinf(inputs).any()
    cure = f"fill them in or drop the rows{', or use data.missing=mean' if can_fill else ''}"
    raise InputError(
        f"{where}: {len(rows)} rows have missing or infinite features, the first is row {rows[0]}, in {few}: {cure}"
        " (float32 ends at 3.4e38)"
    )
