"""Fingerprints (digests) of a run's data, partition and initial model.

They are in the metadata of every table file, so that runs can be compared without their checkpoints.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from rayfl.results.storage import Storage
from rayfl.results.writer import read_metadata

NOTE = b"rayfl_fingerprints"


class Fingerprints(NamedTuple):
    """Digests of what a run started from. Runs with the same three digests had the same start."""

    data: str
    partition: str  # which client has which samples, with which transform, in which planted cluster
    model: str

    def differing(self, other: "Fingerprints") -> list[str]:
        """Return the names of the fingerprints that differ."""
        return [name for name in self._fields if getattr(self, name) != getattr(other, name)]

    def note(self) -> dict[bytes, str]:
        """Return the entry for a table's metadata."""
        return {NOTE: json.dumps(self._asdict())}


def read_fingerprints(storage: Storage) -> Fingerprints | None:
    """Return the fingerprints in the tables; None for runs of older versions, which did not record them."""
    return next(_notes(storage), None)


def _notes(storage: Storage) -> Iterator[Fingerprints]:
    # The last file first: after a resume from round 0, emptied files may still have an older note.
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
