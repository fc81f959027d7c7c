"""Checkpoints: everything needed to continue after a crash with the same bits, in files that hold data and no code.

    checkpoints/round-000020.json          which files make up the state after round 20; written last
    checkpoints/server-000020.npz          arrays of the method and the federation
    checkpoints/clients-000020-00000.npz   what clients keep, for clients that changed since the previous checkpoint

A checkpoint refers to the older client files that it still needs, so its cost depends on how many clients trained, not
on how many there are. The last two checkpoints are kept. Of older ones, the files that only they name are
removed, and no other files. The JSON has the length and the checksum of every file. Everything is checked when it is
read: a folder may come from anybody.
"""

import io
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from rayfl.client.store import ClientState
from rayfl.config import Config, dotted_keys
from rayfl.errors import InputError, shown
from rayfl.federation.places import FederationState
from rayfl.packing import ARRAY_KINDS, Packed, unpack
from rayfl.results import Storage
from rayfl.simulation.manifest import Manifest, manifest_name, round_of
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.server import Snapshot

FOLDER = "checkpoints"
HELD = 2
_Files = tuple[str, list[int]]  # a file of client models, and the clients in it
_Check = tuple[int, int]  # a file's length and CRC-32
PIECE_BYTES = 64 * 2**20
SHARE_OF_TIME = 0.02
#: Keys that change how a run is carried out, or how long it is, but none of its numbers.
FREE_KEYS = (
    "rounds",
    "callbacks",
    "ray",
    "state",
    "output",
    "federation",
    "name",
    "data.root",
    "data.path",
    "participation.path",
    "cpu_capability",
)


class Saves(Protocol):
    """A server whose state can be saved and restored."""

    def snapshot(self) -> Snapshot: ...  # noqa: D102
    def changed_since(self, number: int) -> np.ndarray: ...  # noqa: D102
    def kept_states(self, clients: np.ndarray) -> dict[int, ClientState]: ...  # noqa: D102
    def restore(self, snapshot: Snapshot) -> None: ...  # noqa: D102
    def adopt(self, states: dict[int, ClientState]) -> None: ...  # noqa: D102


class Checkpoints:
    """The checkpoints of one run, written and read.

    `find` works before data and model are loaded; writing and restoring need `prepared`.
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
        self._last: Manifest | None = found._last if found else None
        self._held: dict[int, frozenset[str]] = dict(found._held) if found else {}  # files by round
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
        """The fraction of the time so far that was spent on writing."""
        return self._spent / max(self._clock() - self._begin, 1e-9)

    def is_due(self, number: int) -> bool:
        """Whether to write a checkpoint after round `number`.

        By default, checkpoints are written as often as possible within a fiftieth of the time. Unless
        output.checkpoint_every is 0, there is always one before the last round. There is none after the last round:
        it is tested differently from other rounds, so a run that is given more rounds has to repeat it.
        """
        every = self._config.output.checkpoint_every
        if every == 0 or number >= self._config.rounds:
            return False
        if number == self._config.rounds - 1:
            return True
        if every is not None:
            return number % every == 0
        return self._spent + self._expected <= SHARE_OF_TIME * (self._clock() - self._begin)

    def write(self, server: Saves, callbacks: Mapping[str, Packed] | None = None) -> None:
        """Write a checkpoint with the callbacks' states after the same round; remove checkpoints that are too old."""
        begin = self._clock()
        snapshot = server.snapshot()
        if snapshot.round == self.round:
            return
        number, checks, files = snapshot.round, {}, list(self._last.client_files if self._last else [])
        held = sum(len(clients) for _, clients in files)
        changed = server.changed_since(self.round)
        everyone = server.changed_since(-1)
        if held + len(changed) > 2 * max(1, len(everyone)):
            changed, files = everyone, []  # more than half of the stored models are out of date: write all again
        checks.update({name: self._last.checks[name] for name, _ in files} if self._last else {})
        assert self._prepared is not None
        piece = max(1, PIECE_BYTES // self._prepared.facts.initial.nbytes)
        for part, first in enumerate(range(0, len(changed), piece)):
            kept = server.kept_states(changed[first : first + piece])
            name = f"clients-{number:06d}-{part:05d}.npz"
            checks[name] = self._write_file(name, _client_arrays(kept))
            files.append((name, sorted(kept)))
        name = f"server-{number:06d}.npz"
        (method, arrays), (federation, others) = snapshot.method, snapshot.federation
        told = {callback: tree for callback, (tree, _) in (callbacks or {}).items()}
        states = {key: array for _, held in (callbacks or {}).values() for key, array in held.items()}
        checks[name] = self._write_file(name, {**arrays, **others, **states})
        files, checks = _still_needed(files, checks)
        config = self._config.to_tree()
        prints = self._prepared.fingerprints
        manifest = Manifest(
            round=number,
            config=config,
            method=method,
            federation=federation,
            callbacks=told,
            server=name,
            client_files=files,
            checks=checks,
            data=self._prepared.dealt_fingerprint,
            model=prints.model,
            partition=prints.partition,
        )
        self._storage.write(f"{FOLDER}/{manifest.name}", manifest.to_json())
        self._last = manifest
        self._held[manifest.round] = frozenset(checks)
        self._prune()
        self._expected = self._clock() - begin
        self._spent += self._expected

    def find(self) -> int:
        """Find the last checkpoint in the folder, check that it belongs to this config, and return its round."""
        found = sorted(number for number in map(round_of, self._storage.list(FOLDER)) if number is not None)
        self._last, self._held = None, {}
        if not found:
            return 0
        for number in found[:-1]:
            try:
                older = self._read_manifest(manifest_name(number))
            except InputError:
                continue  # this checkpoint is not needed, and which files belong to it is unknown
            self._held[older.round] = frozenset(older.checks)
        manifest = self._read_manifest(manifest_name(found[-1]))
        refuse_changes(as_config(manifest.config, self._path(manifest.name)), self._config)
        if manifest.round >= self._config.rounds:
            raise InputError(
                f"{self._path(manifest.name)} is of round {manifest.round}, but the run has only"
                f" {self._config.rounds} rounds: restore its config.yaml, or start a new run"
            )
        self._last = manifest
        self._held[manifest.round] = frozenset(manifest.checks)
        return manifest.round

    def remove_from(self, number: int) -> int:
        """Remove the checkpoints of round `number` and later rounds; return the round of the last remaining checkpoint.

        A run whose last round is `number` must repeat that round, because a last round is tested differently.
        """
        self._remove([held for held in sorted(self._held, reverse=True) if held >= number])
        return self.find()

    def bring_back(self, server: Saves) -> None:
        """Restore the server and its clients to their state at the last checkpoint, if there is one."""
        if self._last is None:
            return
        manifest = self._last
        self._check_data(manifest)
        arrays = self._read_file(manifest.server, manifest)
        kept = unpack((manifest.federation, arrays), FederationState).kept
        server.restore(Snapshot(manifest.round, (manifest.method, arrays), (manifest.federation, arrays)))
        missing = {slot: set(clients.tolist()) for slot, clients in kept.items()}
        for states in self._read_clients(manifest):
            server.adopt(states)
            for client, state in states.items():
                for slot in state.models.keys() & missing.keys():
                    missing[slot].discard(client)
        if any(missing.values()):
            clients = sorted(set().union(*missing.values()))
            raise InputError(
                f"{self._path(manifest.name)} names no models for the clients {clients[:5]}: {self._cure(manifest)}"
            )

    def callback_states(self) -> dict[str, Packed]:
        """Return the callbacks' states at the last checkpoint, by name."""
        if self._last is None or not self._last.callbacks:
            return {}
        arrays = self._read_file(self._last.server, self._last)
        return {name: (tree, arrays) for name, tree in self._last.callbacks.items()}

    # -- files ------------------------------------------------------------------------------------------------

    def _read_clients(self, manifest: Manifest) -> Iterator[dict[int, ClientState]]:
        """Yield what clients keep, file by file; the last file with a client has its latest models."""
        assert self._prepared is not None
        facts = self._prepared.facts
        latest = {client: name for name, clients in manifest.client_files for client in clients}
        for name, clients in manifest.client_files:
            arrays = self._read_file(name, manifest)
            try:
                states = _client_states(arrays, facts.layout.size)
                if states.keys() != set(clients) or max(clients, default=0) >= len(facts.n_train):
                    raise ValueError("other clients than the checkpoint says")
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self._path(name)} does not hold models of this run's clients ({error}): {self._cure(manifest)}"
                ) from None
            yield {client: state for client, state in states.items() if latest.get(client) == name}

    def _write_file(self, name: str, arrays: Mapping[str, np.ndarray]) -> tuple[int, int]:
        buffer = io.BytesIO()
        np.savez(buffer, **dict(arrays))  # type: ignore[arg-type]
        data = buffer.getvalue()
        self._storage.write(f"{FOLDER}/{name}", data)
        return len(data), zlib.crc32(data)

    def _read_file(self, name: str, manifest: Manifest) -> dict[str, np.ndarray]:
        try:
            data = self._storage.read(f"{FOLDER}/{name}")
        except FileNotFoundError:
            raise InputError(f"{self._path(name)} is gone: {self._cure(manifest)}") from None
        if (len(data), zlib.crc32(data)) != manifest.checks.get(name):
            raise InputError(f"{self._path(name)} is damaged, or of another run: {self._cure(manifest)}")
        try:
            return _arrays(data)
        except Exception as error:  # a manipulated file may raise any error of zipfile, zlib, struct or numpy
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"{self._path(name)} cannot be read ({reason}): {self._cure(manifest)}") from None

    def _read_manifest(self, name: str) -> Manifest:
        try:
            return Manifest.from_json(self._storage.read(f"{FOLDER}/{name}"), name)
        except ValueError as error:
            raise InputError(
                f"{self._path(name)} is damaged, or no checkpoint of this rayfl ({error}): restore it from a backup, or"
                " remove it to go on from the checkpoint before (from the beginning, if there is none)"
            ) from None

    def _check_data(self, manifest: Manifest) -> None:
        assert self._prepared is not None
        prints = self._prepared.fingerprints
        same_clusters = manifest.partition in (None, prints.partition)
        if manifest.data != self._prepared.dealt_fingerprint or not same_clusters:
            raise InputError(
                f"the data are not those that {self._storage.path} began with: bring back the old ones, or start a new"
                " run"
            )
        if manifest.model != prints.model:
            raise InputError(
                f"the initial model is not the one that {self._storage.path} began with: the model's code, or torch,"
                " has changed since; bring back the old version, or start a new run"
            )

    def _prune(self) -> None:
        """Remove all checkpoints except the last HELD ones."""
        self._remove(sorted(self._held)[:-HELD])

    def _remove(self, rounds: list[int]) -> None:
        """Remove the checkpoints of these rounds: only the files that they name, no other files in the folder."""
        needed = set().union(*[files for number, files in self._held.items() if number not in rounds])
        for number in rounds:
            # The JSON first: the files that it names must not disappear before it.
            for name in [manifest_name(number), *sorted(self._held.pop(number) - needed)]:
                self._storage.remove(f"{FOLDER}/{name}")

    def _path(self, name: str) -> str:
        return f"{self._storage.path}/{FOLDER}/{name}"

    def _cure(self, manifest: Manifest) -> str:
        return (
            f"restore it from a backup, or remove {manifest.name} to go on from the checkpoint before"
            " (from the beginning, if there is none)"
        )


def refuse_changes(then: Config, now: Config) -> None:
    """Refuse to continue with a config that would have given other results from the start."""
    before, after = (_fixed_keys(config.model_dump(mode="json", exclude_none=True)) for config in (then, now))
    differing = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    # Another method, source or kind has other options; a single line about it is enough.
    for name in ("method.name", "data.source", "partition.kind"):
        if name in differing:
            section = name.partition(".")[0]
            differing = [key for key in differing if key == name or not key.startswith(f"{section}.")]
    if differing:
        raise InputError(
            *[
                f"{key}={shown(after.get(key))}: the run began with {shown(before.get(key))}, and would not be the same"
                f" run; leave {key} as it was, or start a new run"
                for key in differing
            ]
        )


def as_config(tree: Mapping[str, Any], where: str) -> Config:
    """Read the run's config from a file in its folder."""
    try:
        return Config.model_validate(tree)
    except ValidationError:
        raise InputError(
            f"{where} holds no config of this rayfl: restore it from a backup, or start a new run"
        ) from None


def _still_needed(files: list[_Files], checks: dict[str, _Check]) -> tuple[list[_Files], dict[str, _Check]]:
    """Leave out files in which every client has newer models in a later file."""
    seen: set[int] = set()
    needed = []
    for name, clients in reversed(files):
        if not seen.issuperset(clients):
            needed.append((name, clients))
        seen.update(clients)
    needed.reverse()
    gone = {name for name, _ in files} - {name for name, _ in needed}
    return needed, {name: check for name, check in checks.items() if name not in gone}


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; refuse code, and compressed data that could expand to a huge size."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        if any(member.file_size > len(data) for member in file.zip.infolist()):
            raise ValueError("it is compressed")
        arrays = {key: file[key] for key in file.files}
    if any(array.dtype.kind not in ARRAY_KINDS for array in arrays.values()):
        raise ValueError("it holds more than numbers and text")
    return arrays


def _client_arrays(states: Mapping[int, ClientState]) -> dict[str, np.ndarray]:
    """Convert client states to arrays: for each slot, the clients and their models."""
    slots = sorted({slot for state in states.values() for slot in state.models})
    arrays = {"slots": np.array(slots, dtype=np.str_)}
    for number, slot in enumerate(slots):
        clients = [c for c in sorted(states) if slot in states[c].models]
        arrays[f"clients.{number}"] = np.array(clients, np.int64)
        arrays[f"models.{number}"] = np.stack([states[c].models[slot] for c in clients])
    return arrays


def _client_states(arrays: Mapping[str, np.ndarray], size: int) -> dict[int, ClientState]:
    """Rebuild client states from arrays, with models of this size."""
    models: dict[int, dict[str, np.ndarray]] = {}
    for number, slot in enumerate(arrays["slots"].tolist()):
        clients, vectors = arrays[f"clients.{number}"], arrays[f"models.{number}"]
        if clients.dtype.kind != "i" or vectors.dtype != np.float32 or vectors.shape != (*clients.shape, size):
            raise ValueError(f"{vectors.dtype} models of shape {vectors.shape}")
        for client, vector in zip(clients.tolist(), vectors, strict=True):
            models.setdefault(client, {})[str(slot)] = vector
    return {client: ClientState(held, frozenset(held)) for client, held in models.items()}


def _fixed_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as dotted keys, without those that may change."""
    free = tuple(f"{key}." for key in FREE_KEYS)
    return {key: value for key, value in dotted_keys(tree).items() if not f"{key}.".startswith(free)}
