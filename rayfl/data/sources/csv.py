"""CSV files: one row per sample, names of columns in the first line."""

from pathlib import Path
from typing import Any

from rayfl.config import DataConfig
from rayfl.config.data import CsvData
from rayfl.data.sources.features import is_text
from rayfl.data.sources.files import existing
from rayfl.data.sources.samples import Samples, reason
from rayfl.data.sources.tables import columns_of, from_table
from rayfl.errors import InputError, shown

#: pyarrow counts the bytes of a block in 32 bits.
_MOST_BYTES = 2**31 - 1


class Csv:
    """A table in a .csv file, which may be compressed."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all rows of data.path."""
        assert isinstance(config, CsvData)
        path = existing(config)
        if path.is_dir():
            raise InputError(f"{config.place} is a folder: data.source=csv needs a file")
        try:
            table = _read(path, config.separator)
        except Exception as error:
            raise InputError(
                f"{config.place} cannot be read as csv ({reason(error)}): check data.separator={config.separator!r} and"
                " the row that it names"
            ) from None
        if table.num_columns == 1:
            raise InputError(
                f"{config.place} has only the column {shown(table.column_names[0])}: say what stands between two values"
                " with data.separator"
            )
        return from_table(table, columns_of(config), column, config.place)


def _read(path: Path, separator: str) -> Any:
    """Return the table; an empty field is missing, and so is NA or NaN among numbers, but not among text."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    with pa.input_stream(str(path)) as file:  # decompresses .gz and the like
        text = file.read()
    # Read as one block: pyarrow takes a column's type from the first block, and refuses later values of another type.
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(block_size=min(max(1, len(text)), _MOST_BYTES)),
        parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
    )
    for number, field in enumerate(table.schema):
        if is_text(field.type):
            values = table.column(number)
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, field.type), values)
            table = table.set_column(number, field, values)
    return table
