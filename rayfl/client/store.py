"""The models that the clients of a worker hold, within and between rounds: in memory up to a budget, then in files.

This module handles vectors and client numbers only, not their meaning. The worker stores trained models here;
checkpoints read states out and put them back.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from rayfl.errors import RayflError

_SEGMENT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ClientState:
    """One client's state: its latest model in each slot, and the slots whose models it keeps between rounds."""

    models: dict[str, np.ndarray]
    kept: frozenset[str]


class ClientStates:
    """The states of all clients on one worker.

    Models beyond `budget` bytes are in memory-mapped files in `folder` (by default the system's temporary folder). The
    files have no name, so they disappear with the process. A returned vector is valid until the client's
    model is replaced or dropped.

    >>> states = ClientStates(size=2, budget=8)
    >>> states.put("model", 7, np.float32([1, 2]), keep=True)
    >>> states.get("model", 7).tolist(), states.get("model", 8)
    ([1.0, 2.0], None)
    """

    def __init__(self, size: int, budget: int, folder: str | None = None) -> None:
        self._size = size
        self._in_memory = budget // max(1, 4 * size)  # rows that stay in memory
        self._memory: list[np.ndarray] = []
        self._spilled = _MappedRows(size, folder)
        self._rows: dict[str, dict[int, int]] = {}
        self._kept: dict[str, set[int]] = {}
        self._free: list[int] = []

    def get(self, slot: str, client: int) -> np.ndarray | None:
        """Return the client's latest model in this slot, None if it has none. Do not write to it."""
        row = self._rows.get(slot, {}).get(client)
        if row is None:
            return None
        return self._memory[row] if row < self._in_memory else self._spilled.read(row - self._in_memory)

    def is_kept(self, slot: str, client: int) -> bool:
        """Return whether the client keeps its model in this slot between rounds."""
        return client in self._kept.get(slot, ())

    def put(self, slot: str, client: int, vector: np.ndarray, keep: bool) -> None:
        """Store a copy of the client's new model."""
        rows = self._rows.setdefault(slot, {})
        row = rows.get(client)
        if row is None:
            row = rows[client] = self._free.pop() if self._free else self._next_row()
        if row < self._in_memory:
            self._memory[row][:] = vector
        else:
            self._spilled.write(row - self._in_memory, vector)
        kept = self._kept.setdefault(slot, set())
        (kept.add if keep else kept.discard)(client)

    def drop_unkept(self, slot: str) -> None:
        """Forget the models in this slot that clients do not keep."""
        rows, kept = self._rows.get(slot, {}), self._kept.get(slot, set())
        for client in [c for c in rows if c not in kept]:
            self._free.append(rows.pop(client))
        self._free.sort(reverse=True)  # rows in memory are used again before rows in files

    def drop(self, slot: str) -> None:
        """Forget all models in this slot."""
        if slot in self._rows:
            self._kept[slot].clear()
            self.drop_unkept(slot)

    def clear(self) -> None:
        """Forget everything, as at the start."""
        for slot in list(self._rows):
            self.drop(slot)

    def take(self, clients: list[int], kept_only: bool = False) -> dict[int, ClientState]:
        """Return copies of these clients' states; clients without any model are left out."""
        states = {}
        for client in clients:
            slots = [s for s in self._rows if not kept_only or self.is_kept(s, client)]
            models = {slot: found.copy() for slot in slots if (found := self.get(slot, client)) is not None}
            if models:
                states[client] = ClientState(models, frozenset(s for s in models if self.is_kept(s, client)))
        return states

    def remove(self, clients: list[int]) -> None:
        """Forget these clients, which have moved to another worker."""
        for slot, rows in self._rows.items():
            self._free += [rows.pop(client) for client in clients if client in rows]
            self._kept[slot].difference_update(clients)
        self._free.sort(reverse=True)

    def restore(self, states: dict[int, ClientState]) -> None:
        """Put states back that `take` returned."""
        for client, state in states.items():
            for slot, vector in state.models.items():
                self.put(slot, client, vector, slot in state.kept)

    def _next_row(self) -> int:
        if len(self._memory) < self._in_memory:
            self._memory.append(np.empty(self._size, np.float32))
            return len(self._memory) - 1
        return self._in_memory + self._spilled.append()


class _MappedRows:
    """Rows of float32 in nameless memory-mapped files; each row has its own pages.

    Pages are returned to the system after each access, so that rows do not count as this process's memory; the
    system still caches them while it has room.
    """

    def __init__(self, size: int, folder: str | None) -> None:
        self._bytes = 4 * size
        self._stride = -(-max(1, self._bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._per_segment = max(1, _SEGMENT_BYTES // self._stride)
        self._folder = folder
        self._segments: list[mmap.mmap] = []
        self._count = 0

    def append(self) -> int:
        if self._count == len(self._segments) * self._per_segment:
            self._segments.append(self._new_segment())
        self._count += 1
        return self._count - 1

    def read(self, row: int) -> np.ndarray:
        segment, begin = self._place(row)
        vector = np.frombuffer(segment, np.float32, self._bytes // 4, begin).copy()
        self._give_back(segment, begin)
        return vector

    def write(self, row: int, vector: np.ndarray) -> None:
        segment, begin = self._place(row)
        np.frombuffer(segment, np.float32, self._bytes // 4, begin)[:] = vector
        self._give_back(segment, begin)

    def _give_back(self, segment: mmap.mmap, begin: int) -> None:
        """Return a row's pages to the system; the file keeps the data. Windows has no such call and needs none."""
        if hasattr(mmap, "MADV_DONTNEED"):
            segment.madvise(mmap.MADV_DONTNEED, begin, self._stride)

    def _place(self, row: int) -> tuple[mmap.mmap, int]:
        return self._segments[row // self._per_segment], row % self._per_segment * self._stride

    def _new_segment(self) -> mmap.mmap:
        length = self._per_segment * self._stride
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # a full disk fails here, not with a fatal signal later
                    os.posix_fallocate(file.fileno(), 0, length)
                else:
                    file.truncate(length)
                return mmap.mmap(file.fileno(), length)
        except OSError as error:
            where = self._folder or tempfile.gettempdir()
            raise RayflError(
                f"client models do not fit: {length / 2**20:.0f} MB more in {where}: {error.strerror};"
                " free space there, name another folder with state.dir, or raise state.memory_mb"
            ) from None
