"""The interface of a folder; `posix_folder`, `plain_folder` and `remote_folder` implement it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


class Backend(ABC):
    """A folder, as `Storage` uses it; the methods are documented there."""

    path: str
    full_path: str  # with secrets: only for opening the folder, never shown

    @abstractmethod
    def make(self) -> None: ...

    @abstractmethod
    def claim(self, name: str, data: bytes) -> bool: ...

    @abstractmethod
    def probe(self) -> None: ...

    @abstractmethod
    def write(self, name: str, data: bytes | pa.Buffer) -> None: ...

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def remove(self, name: str) -> None: ...

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def names(self, folder: str) -> list[str]: ...

    @abstractmethod
    def folders(self, folder: str) -> list[str]: ...

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the folder against other processes; yields False if another process holds the lock."""
        yield True
