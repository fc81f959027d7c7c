"""Parquet files: one row per sample."""

from rayfl.config import DataConfig
from rayfl.data.sources.files import existing
from rayfl.data.sources.samples import Samples, reason
from rayfl.data.sources.tables import columns_of, from_table
from rayfl.errors import InputError


class Parquet:
    """A table in a Parquet file, or a folder of such files."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read all rows of data.path."""
        import pyarrow.parquet as pq

        path = existing(config)
        try:
            table = pq.read_table(path)
        except Exception as error:
            raise InputError(
                f"{config.place} cannot be read as parquet ({reason(error)}): write it with DataFrame.to_parquet"
            ) from None
        return from_table(table, columns_of(config), column, config.place)
