"""What a folder can do, wherever it is: `posix_folder`, `plain_folder` and `remote_folder` do it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


class Backend(ABC):
    """A folder, as `Storage` uses it; what each does is said there."""

    path: str
    full_path: str  # with secrets: to open it, never to show it

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
        """Keep other processes out while inside; yields False if one is in there."""
        yield True
