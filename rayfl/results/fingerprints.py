"""What tells the data, the partition and the initial model of a run from those of another.

They are in the metadata of every file of the tables, so that runs can be compared without their checkpoints.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from rayfl.results.storage import Storage
from rayfl.results.writer import read_metadata

NOTE = b"rayfl_fingerprints"


class Fingerprints(NamedTuple):
    """Digests of what a run began with. Runs with the same three were given the same start."""

    data: str
    partition: str  # who has which samples, through which transform, in which planted cluster
    model: str

    def differing(self, other: "Fingerprints") -> list[str]:
        """Return the names of those that differ."""
        return [name for name in self._fields if getattr(self, name) != getattr(other, name)]

    def note(self) -> dict[bytes, str]:
        """Return what a table has in its metadata."""
        return {NOTE: json.dumps(self._asdict())}


def read_fingerprints(storage: Storage) -> Fingerprints | None:
    """Return what the tables say; None for runs of before rayfl recorded it."""
    return next(_notes(storage), None)


def _notes(storage: Storage) -> Iterator[Fingerprints]:
    # The last file first: after a resume from the beginning, emptied files may still have an older note.
    for file in reversed([f for f in storage.list("rounds") if f.endswith(".parquet")]):
        note = read_metadata(storage.read(f"rounds/{file}")).get(NOTE)
        if note is not None and (found := _parsed(note)) is not None:
            yield found


def _parsed(note: bytes) -> Fingerprints | None:
    try:
        tree: Any = json.loads(note)
        found = Fingerprints(**tree)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if all(isinstance(value, str) for value in found) else None
