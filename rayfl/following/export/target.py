"""What exports to all tools share: a folder, and a note that says which run it is and how far the export got."""

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from rayfl.errors import InputError
from rayfl.following.new_rounds import Batch
from rayfl.following.settings import differing, flat_settings
from rayfl.results.status import Status

NOTE = "rayfl-export.json"
_VERSION = 1


class Target(ABC):
    """The export of one run to one tool. `after` is the last round that has been exported."""

    kind: ClassVar[str]
    package: ClassVar[str | None] = None  # the package that must be installed; None: none besides rayfl
    #: A message for exports that cannot be continued; empty if they can.
    starts_over: ClassVar[str] = ""

    def __init__(self, out: Path, name: str, status: Status) -> None:
        self.name, self.status = name, status
        self.settings = flat_settings(status.run.config)
        self.folder = out / name
        self.note = self._read_note()
        self.after = self.find_last()

    def find_last(self) -> int:
        """Return the last round that was exported before."""
        return int(self.note.get("round", 0))

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Export some rounds. Rounds recorded with `write_note` are not exported again."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close the tool's files properly; another process may add rounds later."""

    @classmethod  # noqa: B027
    def close_tool(cls) -> None:
        """Wait, after the last run, until the tool has written everything."""

    def write_note(self, last: int, **more: Any) -> None:
        """Note that all rounds up to `last` are exported."""
        self.note = (
            self.note
            | more
            | {
                "rayfl_export": _VERSION,
                "to": self.kind,
                "run": self.status.run.path,
                "round": last,
                "settings": self.settings,
            }
        )
        write_whole(self.folder / NOTE, json.dumps(self.note, indent=1).encode())

    def _read_note(self) -> dict[str, Any]:
        try:
            note = json.loads((self.folder / NOTE).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            note = None
        if not isinstance(note, dict) or note.get("rayfl_export") != _VERSION or type(note.get("round")) is not int:
            raise InputError(f"{self.folder / NOTE} is damaged: remove {self.folder} and export again")
        before = note.get("settings")
        keys = differing([before if isinstance(before, dict) else {}, self.settings], _MAY_CHANGE)
        keys = [key for key in keys if key.partition(".")[0] != "callbacks"]
        if note.get("to") != self.kind or keys:
            what = f"its {', '.join(keys[:3])} differ" if keys else f"it is for {note.get('to')}"
            raise InputError(
                f"{self.folder} is the export of another run ({what}): give another folder with -o, or remove it"
            )
        return note


#: Keys that may change when a run is resumed, without making it another run.
_MAY_CHANGE = ("rounds", "federation")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, or replace the old one, so that readers see it complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
