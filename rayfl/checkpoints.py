"""Checkpoints: all that is needed to go on after a crash, to the same bits, in files that hold data and no code.

    checkpoints/round-000020.json          which files make up the state after round 20; appears last, whole
    checkpoints/server-000020.npz          arrays of the method and the federation
    checkpoints/clients-000020-00000.npz   what clients keep, those that changed since the checkpoint before

A checkpoint names the older client files it still needs, so it costs by who trained, not by who there is. The last two
are held, and files that neither needs are removed. Every file's length and checksum stand in the JSON.
"""

import io
import json
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rayfl.config import Config
from rayfl.errors import InputError
from rayfl.federation.client_state import ClientState
from rayfl.preparation import Prepared
from rayfl.results import Storage
from rayfl.server import Snapshot

FOLDER = "checkpoints"
VERSION = 1
HELD = 2
PIECE_BYTES = 64 * 2**20
SHARE_OF_TIME = 0.02
#: Keys that change how a run is carried out, or how long it is, but no number in it.
FREE_KEYS = ("rounds", "ray", "state", "output", "federation", "name", "data.root", "data.path")


class Saves(Protocol):
    """A server whose state can be taken out and put back."""

    def snapshot(self) -> Snapshot: ...  # noqa: D102
    def changed_since(self, number: int) -> np.ndarray: ...  # noqa: D102
    def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]: ...  # noqa: D102
    def restore(self, snapshot: Snapshot) -> None: ...  # noqa: D102
    def adopt(self, states: dict[int, ClientState]) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class _ClientFile:
    """A file of client models, and whose they are."""

    name: str
    clients: list[int]


@dataclass(frozen=True)
class _Manifest:
    """One checkpoint: what its JSON says."""

    round: int
    config: dict[str, Any]
    method: Any  # trees; the arrays are in the server's file
    federation: Any
    server: str
    client_files: list[_ClientFile]
    checks: dict[str, list[int]]  # by file: length and CRC-32
    data: str  # fingerprints: who got which samples,
    model: str  # and the initial model


class Checkpoints:
    """The checkpoints of one run, written and read.

    `find` can do its part before data and model are there; to write and to restore, `prepared` must be.
    """

    def __init__(
        self,
        storage: Storage,
        config: Config,
        prepared: Prepared | None = None,
        *,
        found: "Checkpoints | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._config, self._prepared = storage, config, prepared
        self._last: _Manifest | None = found._last if found else None
        self._clock = clock
        self._begin = clock()
        self._spent = 0.0
        self._expected = 0.0

    @property
    def round(self) -> int:
        """The round after which the last checkpoint was written; 0 for none."""
        return self._last.round if self._last else 0

    @property
    def share_of_time(self) -> float:
        """How much of the time so far went into writing."""
        return self._spent / max(self._clock() - self._begin, 1e-9)

    def is_due(self, number: int) -> bool:
        """Whether to write one after round `number`.

        By default as often as takes a fiftieth of the time. None is written after the last round, which is tested
        in ways that others are not: a run that is given more rounds goes on from before it. One is, before it.
        """
        every = self._config.output.checkpoint_every
        if every == 0 or number >= self._config.rounds:
            return False
        if number == self._config.rounds - 1:
            return True
        if every is not None:
            return number % every == 0
        return self._spent + self._expected <= SHARE_OF_TIME * (self._clock() - self._begin)

    def write(self, server: Saves) -> None:
        """Write one, and remove those that it replaces."""
        begin = self._clock()
        snapshot = server.snapshot()
        if snapshot.round == self.round:
            return
        number, checks, files = snapshot.round, {}, list(self._last.client_files if self._last else [])
        held = sum(len(file.clients) for file in files)
        changed = server.changed_since(self.round)
        everyone = server.changed_since(-1)
        if held + len(changed) > 2 * max(1, len(everyone)):
            changed, files = everyone, []  # more than half of what is held is out of date: write all anew
        checks.update({f.name: self._last.checks[f.name] for f in files} if self._last else {})
        assert self._prepared is not None
        piece = max(1, PIECE_BYTES // self._prepared.facts.initial.nbytes)
        for part, first in enumerate(range(0, len(changed), piece)):
            states = server.kept_states(changed[first : first + piece])
            name = f"clients-{number:06d}-{part:05d}.npz"
            checks[name] = self._write_file(name, _client_arrays(states))
            files.append(_ClientFile(name, sorted(states)))
        name = f"server-{number:06d}.npz"
        (method, arrays), (federation, others) = snapshot.method, snapshot.federation
        checks[name] = self._write_file(name, {**arrays, **others})
        files, checks = _still_needed(files, checks)
        config = self._config.to_tree()
        data, model = self._prepared.fingerprints
        manifest = _Manifest(number, config, method, federation, name, files, checks, data, model)
        self._storage.write(f"{FOLDER}/{_json_name(number)}", _to_json(manifest))
        before, self._last = self._last, manifest
        self._prune([m for m in (before, manifest) if m])
        self._expected = self._clock() - begin
        self._spent += self._expected

    def find(self) -> int:
        """Look for the last checkpoint in the folder, check that it is of this config, and return its round."""
        found = [name for name in self._storage.list(FOLDER) if name.startswith("round-") and name.endswith(".json")]
        self._last = None
        if not found:
            return 0
        manifest = self._read_manifest(found[-1])
        refuse_changes(Config.model_validate(manifest.config), self._config)
        self._last = manifest
        return manifest.round

    def bring_back(self, server: Saves) -> None:
        """Put the server and its clients back to where they stood at the last checkpoint, if there is one."""
        if self._last is None:
            return
        manifest = self._last
        self._check_data(manifest)
        arrays = self._read_file(manifest.server, manifest)
        server.restore(Snapshot(manifest.round, (manifest.method, arrays), (manifest.federation, arrays)))
        for states in self._read_clients(manifest):
            server.adopt(states)

    # -- files ------------------------------------------------------------------------------------------------

    def _read_clients(self, manifest: _Manifest) -> Iterator[dict[int, ClientState]]:
        """Yield what clients keep, file by file; the last file that names a client has its latest models."""
        latest = {client: file.name for file in manifest.client_files for client in file.clients}
        for file in manifest.client_files:
            states = _client_states(self._read_file(file.name, manifest))
            yield {client: state for client, state in states.items() if latest.get(client) == file.name}

    def _write_file(self, name: str, arrays: Mapping[str, np.ndarray]) -> list[int]:
        buffer = io.BytesIO()
        np.savez(buffer, **dict(arrays))  # type: ignore[arg-type]
        data = buffer.getvalue()
        self._storage.write(f"{FOLDER}/{name}", data)
        return [len(data), zlib.crc32(data)]

    def _read_file(self, name: str, manifest: _Manifest) -> dict[str, np.ndarray]:
        try:
            data = self._storage.read(f"{FOLDER}/{name}")
        except FileNotFoundError:
            raise InputError(f"{self._path(name)} is gone: {self._cure(manifest)}") from None
        if [len(data), zlib.crc32(data)] != manifest.checks.get(name):
            raise InputError(f"{self._path(name)} is damaged, or of another run: {self._cure(manifest)}")
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
            raise InputError(f"{self._path(name)} cannot be read ({error}): {self._cure(manifest)}") from None

    def _read_manifest(self, name: str) -> _Manifest:
        try:
            return _from_json(self._storage.read(f"{FOLDER}/{name}"))
        except (ValueError, TypeError, KeyError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self._path(name)} is damaged, or no checkpoint of this rayfl ({error}): restore it from a backup, or"
                " remove it to go on from the checkpoint before (from the beginning, if there is none)"
            ) from None

    def _check_data(self, manifest: _Manifest) -> None:
        assert self._prepared is not None
        data, model = self._prepared.fingerprints
        if manifest.data != data:
            raise InputError(
                f"the data are not those that {self._storage.path} began with: bring back the old ones, or run anew"
            )
        if manifest.model != model:
            raise InputError(
                f"the initial model is not the one that {self._storage.path} began with: the model's code, or torch,"
                " has changed since; bring back the old version, or run anew"
            )

    def _prune(self, manifests: list[_Manifest]) -> None:
        needed = {_json_name(m.round) for m in manifests[-HELD:]}
        for manifest in manifests[-HELD:]:
            needed |= manifest.checks.keys()
        # The JSON first: what it names must not go before it.
        names = sorted(self._storage.list(FOLDER), key=lambda name: not name.endswith(".json"))
        for name in names:
            if name not in needed and name.startswith(("round-", "server-", "clients-")):
                self._storage.remove(f"{FOLDER}/{name}")

    def _path(self, name: str) -> str:
        return f"{self._storage.path}/{FOLDER}/{name}"

    def _cure(self, manifest: _Manifest) -> str:
        return (
            f"restore it from a backup, or remove {_json_name(manifest.round)} to go on from the checkpoint before"
            " (from the beginning, if there is none)"
        )


def refuse_changes(then: Config, now: Config) -> None:
    """Refuse to go on with a config that would have given other numbers from the start."""
    before, after = (_fixed_keys(config.model_dump(mode="json", exclude_none=True)) for config in (then, now))
    differing = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if differing:
        raise InputError(
            *[
                f"{key}={after.get(key)!r}: the run began with {before.get(key)!r}, and would not be the same run;"
                f" leave {key} as it was, or start a new run"
                for key in differing
            ]
        )


def _json_name(number: int) -> str:
    return f"round-{number:06d}.json"


def _still_needed(files: list[_ClientFile], checks: dict[str, list[int]]) -> tuple[list[_ClientFile], dict]:
    """Leave out the files all of whose clients have newer models in a later one."""
    seen: set[int] = set()
    needed = []
    for file in reversed(files):
        if not seen.issuperset(file.clients):
            needed.append(file)
        seen.update(file.clients)
    needed.reverse()
    gone = {f.name for f in files} - {f.name for f in needed}
    return needed, {name: check for name, check in checks.items() if name not in gone}


def _client_arrays(states: Mapping[int, ClientState]) -> dict[str, np.ndarray]:
    """Lay client states out as arrays: for each slot, clients and their models."""
    slots = sorted({slot for state in states.values() for slot in state.models})
    arrays = {"slots": np.array(slots, dtype=np.str_)}
    for number, slot in enumerate(slots):
        clients = [c for c in sorted(states) if slot in states[c].models]
        arrays[f"clients.{number}"] = np.array(clients, np.int64)
        arrays[f"models.{number}"] = np.stack([states[c].models[slot] for c in clients])
    return arrays


def _client_states(arrays: Mapping[str, np.ndarray]) -> dict[int, ClientState]:
    models: dict[int, dict[str, np.ndarray]] = {}
    for number, slot in enumerate(arrays["slots"].tolist()):
        for client, vector in zip(arrays[f"clients.{number}"].tolist(), arrays[f"models.{number}"], strict=True):
            models.setdefault(client, {})[slot] = vector
    return {client: ClientState(held, frozenset(held)) for client, held in models.items()}


def _to_json(manifest: _Manifest) -> bytes:
    tree = {"rayfl_checkpoint": VERSION, **vars(manifest)}
    tree["client_files"] = [[file.name, file.clients] for file in manifest.client_files]
    return json.dumps(tree).encode()


def _from_json(data: bytes) -> _Manifest:
    tree = json.loads(data)
    if not isinstance(tree, dict) or tree.pop("rayfl_checkpoint", None) != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    tree["client_files"] = [_ClientFile(name, clients) for name, clients in tree["client_files"]]
    return _Manifest(**tree)


def _fixed_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the config as dotted keys, without those that may change."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name in FREE_KEYS:
            continue
        if isinstance(value, Mapping):
            flat |= _fixed_keys(value, f"{name}.")
        else:
            flat[name] = value
    return flat
