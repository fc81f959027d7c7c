"""Columns of tables that name the owner of each row, and columns that must be there."""

import numpy as np
import pandas as pd

from rayfl.errors import InputError, closest


def owner_columns_of(available: list[str], column: str | None) -> list[str]:
    """The columns that together name the owner: `play+role` is two, unless a column has exactly this name."""
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
