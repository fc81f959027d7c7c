"""A local folder on systems without `fcntl` and `dir_fd`, such as Windows: files are opened by their paths.

Links are refused as in `posix_folder`, but a link that is created between the check and the opening is followed.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from rayfl.errors import InputError, RayflError
from rayfl.results.local_folder import LocalFolder, a_link, gone

try:
    import msvcrt
except ImportError:  # neither Windows nor POSIX: folders are not locked
    msvcrt = None  # type: ignore[assignment]


class PlainFolder(LocalFolder):
    """A local folder whose files are opened by their paths."""

    _held = False

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        path = self._checked(name)
        if self._held and not self._root.is_dir():
            raise RayflError(gone(self.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise

    def read(self, name: str) -> bytes:
        path = self._checked(name)
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file: restore it, or run again")
        return path.read_bytes()

    def remove(self, name: str) -> None:
        self._checked(name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        path = self._checked(folder)
        return [inner.name for inner in path.iterdir()] if path.is_dir() else []

    def folders(self, folder: str) -> list[str]:
        path = self._checked(folder)
        inside = path.iterdir() if path.is_dir() else ()
        return [inner.name for inner in inside if inner.is_dir() and not inner.is_symlink()]

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the folder against other processes, if the system can."""
        with self._checked(".lock").open("a+b") as file:
            if msvcrt is not None:
                file.seek(0)
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
                except OSError:
                    yield False
                    return
            self._held = True
            try:
                yield True
            finally:
                self._held = False
                if msvcrt is not None:
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]

    def _checked(self, name: str) -> Path:
        """Return the path of a file or folder below this one; no part of it may be a link."""
        path = self._root
        for part in name.split("/") if name else []:
            path = path / part
            if path.is_symlink():
                raise InputError(a_link(str(path)))
        return path
