"""Tables: which columns are features, label, split and client, and how they become numbers. No column is dropped
unless the config says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rayfl.data.sources.samples import Samples, reason, validation_split
from rayfl.errors import InputError, closest

#: The most features that one column of categories may become.
_MOST_VALUES = 1000


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are for; `key` is how messages call the keys, such as data."""

    label: str = "label"
    client: str | None = None
    categories: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def from_frame(frame: pd.DataFrame, columns: Columns, column: str | None, where: str) -> Samples:
    """Return the samples in the rows of a DataFrame; its index is no column."""
    import pyarrow as pa

    frame = frame.rename(columns=str)
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"{where} has two columns '{twice[0]}': rename one")
    dropped = tuple(name for name in columns.drop if name in frame)
    frame = frame.drop(columns=list(dropped))  # they may hold anything
    for name in frame.columns:
        try:
            pa.Array.from_pandas(frame[name])
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: column '{name}' holds values of several kinds ({reason(error)}): make them one kind, or"
                f" leave the column out with data.drop=[{name}]"
            ) from None
    return from_table(pa.Table.from_pandas(frame, preserve_index=False), columns, column, where, dropped)


def from_table(table: Any, columns: Columns, column: str | None, where: str, dropped: tuple[str, ...] = ()) -> Samples:
    """Return the samples in the rows of an Arrow table. `dropped` are columns that are no longer in it."""
    if table.num_rows == 0:
        raise InputError(f"{where} has no rows: write some samples into it")
    owner_columns = owner_columns_of(table.column_names, column)
    if not owner_columns and columns.client is not None:
        owner_columns, owner_key = owner_columns_of(table.column_names, columns.client), "data.client"
    else:
        owner_key = "partition.column"
    others = [name for name in (columns.client,) if name is not None]
    meta = {name for name in table.column_names if name in (columns.label, "split", *owner_columns, *others)}
    available = [*table.column_names, *dropped]
    need_columns(available, list(columns.drop), where, "data.drop")
    need_columns(table.column_names, list(columns.categories), where, "data.categories")
    _refuse_nested(table, meta, columns.drop, where)
    frame = table.select(sorted(meta)).to_pandas()
    need_columns(table.column_names, [columns.label], where, "data.label")
    need_columns(table.column_names, owner_columns, where, owner_key)
    inputs = _features(table, meta | set(columns.drop), columns, where)
    owner, names = owners_of(frame, owner_columns, where) if owner_columns else (None, None)
    split_of = _split_column(frame, where)
    labels = _labels(frame[columns.label], columns.label, where)
    return Samples(inputs, labels, "vector", split_of == "test", owner, names, is_validation=validation_split(split_of))


def _features(table: Any, meta: set[str], columns: Columns, where: str) -> np.ndarray:
    """Return all other columns as numbers: lists if there are any, else numbers and categories in their order."""
    import pyarrow.types as types

    fields = [field for field in table.schema if field.name not in meta]
    lists = [field.name for field in fields if _is_list(field.type)]
    named = [f.name for f in fields if f.name in columns.categories or types.is_dictionary(f.type)]
    numbers = [f.name for f in fields if _is_number(f.type) or f.name in named]
    if not lists and not numbers:
        raise InputError(f"{where} has no numeric column besides data.label={columns.label}: add the features")
    for field in fields:
        if field.name not in lists and field.name not in numbers:
            what = "text" if types.is_string(field.type) or types.is_large_string(field.type) else str(field.type)
            raise InputError(
                f"{where}: column '{field.name}' holds {what}, not numbers: data.categories=[{field.name}] makes one"
                f" feature per value of it, data.drop=[{field.name}] leaves it out, and data.client={field.name} says"
                " that it names the clients"
            )
    parts = [_column(table.column(name), name, name in named, f"{where}: column '{name}'") for name in lists or numbers]
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        inputs = np.concatenate(parts, axis=1).astype(np.float32)
    if not np.isfinite(inputs).all():
        rows = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
        raise InputError(
            f"{where}: {len(rows)} rows have missing or infinite features, the first is row {rows[0]}:"
            " fill them in or drop the rows (float32 ends at 3.4e38)"
        )
    return inputs


def _column(column: Any, name: str, categories: bool, where: str) -> np.ndarray:
    if _is_list(column.type):
        return _list_column(column, where)
    if categories:
        return _one_hot(column, name, where)
    return column.cast("float64", safe=False).to_numpy()[:, None]


def _one_hot(column: Any, name: str, where: str) -> np.ndarray:
    """Return a 1 in the place of each row's value: in the order of pandas' categories, else in sorted order."""
    values = column.to_pandas()
    if values.isna().any():
        raise InputError(f"{where}: {int(values.isna().sum())} rows have no value: fill them in or drop the rows")
    if not isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(pd.CategoricalDtype(sorted(values.unique())))
    if len(values.cat.categories) > _MOST_VALUES:
        raise InputError(
            f"{where} has {len(values.cat.categories)} values, more than the {_MOST_VALUES} that may become features:"
            f" leave it out with data.drop=[{name}], or group its values"
        )
    return np.eye(len(values.cat.categories))[values.cat.codes.to_numpy()]


def _list_column(column: Any, where: str) -> np.ndarray:
    """Return a column of equally long lists as a matrix."""
    rows = column.combine_chunks()
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    if rows.null_count or len(np.unique(lengths)) != 1 or lengths[0] == 0:
        raise InputError(f"{where} has missing lists or lists of different lengths: make every list as long")
    return rows.flatten().cast("float64", safe=False).to_numpy(zero_copy_only=False).reshape(len(lengths), -1)


def _refuse_nested(table: Any, meta: set[str], drop: tuple[str, ...], where: str) -> None:
    import pyarrow.types as types

    for field in table.schema:
        if field.name in meta and types.is_nested(field.type):
            raise InputError(f"{where}: column '{field.name}' holds {field.type}: it must have one value per row")
        if field.name in meta or field.name in drop:
            continue
        if _is_list(field.type) and not _is_number(field.type.value_type):
            raise InputError(
                f"{where}: column '{field.name}' holds {field.type}: a list must hold numbers, not lists or text;"
                " flatten it"
            )


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _labels(values: pd.Series, label: str, where: str) -> np.ndarray:
    """Return the column as it is, or as text where it holds text or categories."""
    if values.dtype != object and not isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype):
        return values.to_numpy()
    if values.isna().any():
        missing = int(values.isna().sum())
        raise InputError(f"{where}: {missing} rows have no data.label={label}: fill them in or drop the rows")
    return values.astype(str).to_numpy(dtype=object)


def _split_column(frame: pd.DataFrame, where: str) -> np.ndarray:
    if "split" not in frame:
        return np.full(len(frame), "train")
    split = frame["split"].astype(str)
    unknown = sorted(set(split) - {"train", "val", "test"})
    if unknown:
        raise InputError(f"{where}: column 'split' holds {unknown[0]!r}: it must be train, val or test, or be renamed")
    return split.to_numpy(dtype=np.str_)


def read_table(path: Path, where: str) -> pd.DataFrame:
    """Read a table from a .csv, .csv.gz or .parquet file."""
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.name.endswith((".csv", ".csv.gz")):
            # Roles called "NA" or "None" are names, not gaps.
            return pd.read_csv(path, keep_default_na=False)
    except Exception as error:
        raise InputError(f"{where} cannot be read as a table ({reason(error)}): get a complete copy of it") from None
    raise InputError(f"{where} is of no known kind: use a .txt, .csv, .csv.gz or .parquet file")


def owner_columns_of(available: list[str], column: str | None) -> list[str]:
    """The columns that together name the owner: `play+role` is two, unless a column has that very name."""
    if column is None:
        return []
    return [column] if column in available else column.split("+")


def need_columns(available: list[str], columns: list[str], where: str, key: str) -> None:
    """Refuse columns that are not there."""
    for column in columns:
        if column not in available:
            hint = closest(column, available)
            raise InputError(
                f"{where} has no column '{column}'{hint}: {key} must be one of {', '.join(available) or '(none)'}"
            )


def owners_of(table: pd.DataFrame, columns: list[str], where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the owners in the sorted order of their names."""
    for column in columns:
        missing = table[column].isna() | (table[column].astype(str) == "")
        if missing.any():
            raise InputError(
                f"{where}: {int(missing.sum())} rows have no '{column}', the first is row"
                f" {int(missing.argmax())}: fill them in or drop the rows"
            )
    groups = table.groupby(columns if len(columns) > 1 else columns[0], sort=True, observed=True)
    names = tuple("/".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in groups.groups)
    return groups.ngroup().to_numpy().astype(np.int32), names
