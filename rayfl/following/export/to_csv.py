"""CSV: the three tables as they are, and the settings; rows are added as rounds come."""

import csv
import io
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from rayfl.errors import InputError
from rayfl.following.export.target import Target, write_whole
from rayfl.following.listing import setting_text
from rayfl.following.new_rounds import Batch
from rayfl.uris import without_secrets


class CsvExport(Target):
    """rounds.csv, clients.csv, clusters.csv and config.csv."""

    kind = "csv"

    def write(self, batch: Batch) -> None:
        """Add rows. The note has the length of each file: anything beyond it is from a killed export and is removed."""
        if self.after == 0 and not self.note:
            write_whole(self.folder / "config.csv", self._settings())
        lengths = dict(self.note.get("bytes", {}))
        for name, table in (("rounds", batch.rounds), ("clients", batch.clients), ("clusters", batch.clusters)):
            lengths[name] = self._append(name, table, lengths.get(name, 0))
        self.write_note(batch.last, bytes=lengths)

    def _append(self, name: str, table: pa.Table, length: int) -> int:
        path = self.folder / f"{name}.csv"
        if length and (not path.exists() or path.stat().st_size < length):
            raise InputError(f"{path} was changed since it was exported: remove {self.folder} and export again")
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(length)
            file.seek(length)
            options = arrow_csv.WriteOptions(include_header=length == 0, quoting_style="needed")
            arrow_csv.write_csv(_without_secrets(table), file, options)
            file.flush()
            return file.tell()

    def _settings(self) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["key", "value"])
        writer.writerows((key, setting_text(value)) for key, value in self.settings.items())
        return text.getvalue().encode()


def _without_secrets(table: pa.Table) -> pa.Table:
    if "extras" not in table.schema.names:
        return table
    at = table.schema.get_field_index("extras")
    texts: list[Any] = [None if text is None else without_secrets(text) for text in table["extras"].to_pylist()]
    return table.set_column(at, table.schema.field(at), pa.array(texts, pa.string()))
