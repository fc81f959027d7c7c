"""Tables: which columns are features, label, split and client. How features become numbers is in `features`."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rayfl.config import DataConfig
from rayfl.config.data import TableKeys
from rayfl.data.dataset import Kind
from rayfl.data.sources.features import Missing, features_of
from rayfl.data.sources.owners import need_columns, owner_columns_of, owners_of
from rayfl.data.sources.samples import Samples, reason, validation_split
from rayfl.errors import InputError


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are for, and what is done about missing numbers and categories."""

    label: str = "label"
    client: str | None = None
    categories: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: Missing = "refuse"


def columns_of(config: DataConfig) -> Columns:
    """Return what the config says of the columns of a table."""
    assert isinstance(config, TableKeys)
    return Columns(config.label, config.client, tuple(config.categories), tuple(config.drop), config.missing)


def from_frame(frame: pd.DataFrame, columns: Columns, column: str | None, where: str) -> Samples:
    """Return the samples in the rows of a DataFrame; its index is no column."""
    import pyarrow as pa

    frame = frame.rename(columns=str)
    refuse_twice(list(frame.columns), where)
    dropped = tuple(name for name in columns.drop if name in frame)
    frame = frame.drop(columns=list(dropped))  # dropped columns may hold anything, also what Arrow cannot read
    for name in frame.columns:
        try:
            pa.Array.from_pandas(frame[name])
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: column '{name}' holds values of several kinds ({reason(error)}): make them one kind, or"
                f" leave the column out with data.drop=[{name}]"
            ) from None
    return from_table(pa.Table.from_pandas(frame, preserve_index=False), columns, column, where, dropped)


def from_table(
    table: Any,
    columns: Columns,
    column: str | None,
    where: str,
    dropped: tuple[str, ...] = (),
    split_of: np.ndarray | None = None,
) -> Samples:
    """Return the samples in the rows of an Arrow table; `column` is partition.column.

    `dropped` are columns that were removed from the table before. `split_of` says train, val or test for each row;
    without `split_of`, a column called split does.
    """
    about = described(table, columns, column, where, split_of)
    available = [*table.column_names, *dropped]
    need_columns(available, list(columns.drop), where, "data.drop")
    need_columns(table.column_names, list(columns.categories), where, "data.categories")
    features = features_of(
        table,
        {*about.columns, *columns.drop},
        columns.categories,
        columns.missing,
        about.split_of != "test",
        where,
    )
    unused = ", ".join(features.unused)
    notes = (f"{where}: not used as features, since lists of numbers are there: {unused}",) if unused else ()
    return replace(about.samples(features.inputs, "vector"), feature_names=features.names, notes=notes)


@dataclass(frozen=True)
class Described:
    """What a table says about its rows besides features: labels, splits and owners, and the columns with these."""

    columns: tuple[str, ...]
    labels: np.ndarray
    split_of: np.ndarray
    owner: np.ndarray | None
    owner_names: tuple[str, ...] | None

    def samples(self, inputs: np.ndarray, kind: Kind) -> Samples:
        """Return these rows as samples."""
        return Samples(
            inputs,
            self.labels,
            kind,
            self.split_of == "test",
            self.owner,
            self.owner_names,
            is_validation=validation_split(self.split_of),
        )


def described(
    table: Any, columns: Columns, column: str | None, where: str, split_of: np.ndarray | None = None
) -> Described:
    """Read labels, splits and owners; the arguments are those of `from_table`."""
    import pyarrow.types as types

    names = table.column_names
    refuse_twice(names, where)
    if table.num_rows == 0:
        raise InputError(f"{where} has no rows: write some samples into it")
    owner_columns = owner_columns_of(names, column)
    owner_key = "partition.column"
    if not owner_columns and columns.client is not None:
        owner_columns, owner_key = owner_columns_of(names, columns.client), "data.client"
    roles = [columns.label, columns.client, *owner_columns, *(["split"] if split_of is None else [])]
    meta = [name for name in names if name in roles]
    for field in table.select(meta).schema:
        if types.is_nested(field.type):
            raise InputError(f"{where}: column '{field.name}' holds {field.type}: it must have one value per row")
    frame = table.select(meta).to_pandas()
    need_columns(names, [columns.label], where, "data.label")
    need_columns(names, owner_columns, where, owner_key)
    owner, owner_names = owners_of(frame, owner_columns, where) if owner_columns else (None, None)
    labels = _labels(frame[columns.label], columns.label, where)
    return Described(
        tuple(meta), labels, _split_column(frame, where) if split_of is None else split_of, owner, owner_names
    )


def refuse_twice(names: list[str], where: str) -> None:
    """Refuse two columns of one name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise InputError(f"{where} has two columns '{name}': rename one")


def _labels(values: pd.Series, label: str, where: str) -> np.ndarray:
    """Return the column as it is, or as text where it holds text or categories."""
    if values.isna().any():
        missing = int(values.isna().sum())
        raise InputError(f"{where}: {missing} rows have no data.label={label}: fill them in or drop the rows")
    if values.dtype != object and not isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype):
        return values.to_numpy()
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
