"""The JSON file of a checkpoint, read without trusting it: it may be of another version, or come from anybody.

File names are checked, so that none leads out of the folder. The files themselves are read in `checkpoints`.
"""

import json
import re
import zlib
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

VERSION: Final = 1
_NAME = re.compile(r"round-(\d{6,9})\.json")

Count = Annotated[int, Field(ge=0, lt=2**63)]
ServerFile = Annotated[str, Field(pattern=r"^server-\d{6,9}\.npz$")]
ClientsFile = Annotated[str, Field(pattern=r"^clients-\d{6,9}-\d{5,9}\.npz$")]


class Manifest(BaseModel):
    """One checkpoint: the files that belong to it, and the rest of the server's state."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rayfl_checkpoint: Literal[1] = VERSION
    round: int = Field(ge=1, lt=10**9)
    config: dict[str, Any]
    method: Any  # trees; the arrays are in the server's file
    federation: Any
    callbacks: dict[str, Any] = {}  # by name
    server: ServerFile
    client_files: list[tuple[ClientsFile, list[Count]]]  # each with the clients in it
    checks: dict[str, tuple[Count, Count]]  # by file: length and CRC-32
    data: str  # fingerprint of which client got which samples
    model: str  # fingerprint of the initial model
    partition: str | None = None  # fingerprint of the partition with its planted clusters; rayfl 0.1 did not have it
    check: Count | None = None  # CRC-32 of all other fields; older versions did not write it

    @model_validator(mode="after")
    def _checks_every_file(self) -> "Manifest":
        names = [self.server, *[name for name, _ in self.client_files]]
        if len(set(names)) < len(names) or set(names) != self.checks.keys():
            raise ValueError("its checks do not match its files")
        return self

    @property
    def name(self) -> str:
        """The name of the JSON file."""
        return manifest_name(self.round)

    def to_json(self) -> bytes:
        """Return the file's bytes."""
        tree = self.model_dump()
        return json.dumps(tree | {"check": check_of(tree)}).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> "Manifest":
        """Read the file of this name; ValueError, in one line, if this version of rayfl cannot have written it."""
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            if first["loc"][:1] == ("rayfl_checkpoint",):
                raise ValueError(f"it is not of version {VERSION}") from None
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
        if manifest.check is not None and manifest.check != check_of(json.loads(data)):
            raise ValueError("its checksum does not match its content")
        if manifest.name != name:
            raise ValueError(f"it is of round {manifest.round}")
        return manifest


def check_of(tree: dict[str, Any]) -> int:
    """Return the right value of `check`. It detects damage, but not manipulation on purpose."""
    rest = {key: value for key, value in tree.items() if key != "check"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def manifest_name(number: int) -> str:
    """Return the name of the file for the checkpoint after this round."""
    return f"round-{number:06d}.json"


def round_of(name: str) -> int | None:
    """Return the round in a file's name; None for a file that is not a manifest.

    >>> round_of("round-000020.json"), round_of("round-trip.json")
    (20, None)
    """
    found = _NAME.fullmatch(name)
    return int(found[1]) if found and name == manifest_name(int(found[1])) else None
