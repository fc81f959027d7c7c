"""A local folder on Linux and macOS. It may come from anybody: links are not followed, only plain files are opened."""

import fcntl  # noqa: F401 - systems without it use `plain_folder`
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from rayfl.errors import InputError, RayflError
from rayfl.results.local_folder import LocalFolder, a_link, gone
from rayfl.results.locks import NO_LOCKS, take


class PosixFolder(LocalFolder):
    """A local folder whose files are opened relative to an open folder, so that no link can be inserted on the way."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._held: int | None = None  # the folder, opened, while it is locked
        self._made: set[str] = set()  # inner folders that are known to exist

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        folder, _, name = name.rpartition("/")
        with self._opened(folder, make=True) as where:
            # Write under another name in the same folder first: a rename is atomic only within a file system. Readers
            # of the folder (pandas, pyarrow, Spark) skip names that begin with a dot. The name is unique, so that an
            # old writer that is still alive does no harm.
            aside = f".{name}.{uuid.uuid4().hex[:12]}"
            try:
                with os.fdopen(os.open(aside, _NEW_FILE, 0o666, dir_fd=where), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, name, src_dir_fd=where, dst_dir_fd=where)
            except BaseException:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=where)
                raise
            os.fsync(where)  # the rename is on disk only after the folder is synced

    def read(self, name: str) -> bytes:
        folder, _, name = name.rpartition("/")
        with self._opened(folder) as where:
            path = f"{self.path}/{folder}/{name}" if folder else f"{self.path}/{name}"
            with os.fdopen(_open_plain_file(name, os.O_RDONLY, where, path), "rb") as file:
                return file.read()

    def remove(self, name: str) -> None:
        folder, _, name = name.rpartition("/")
        with suppress(FileNotFoundError), self._opened(folder) as where:
            os.unlink(name, dir_fd=where)

    def names(self, folder: str) -> list[str]:
        try:
            with self._opened(folder) as where:
                return [entry.name for entry in os.scandir(where)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def folders(self, folder: str) -> list[str]:
        try:
            with self._opened(folder) as where:
                return [entry.name for entry in os.scandir(where) if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []

    @contextmanager
    def locked(self) -> Iterator[bool]:
        with self._opened("") as root:
            lock = _open_plain_file(".lock", os.O_RDWR | os.O_CREAT, root, f"{self.path}/.lock")
            try:
                take(lock)
            except BlockingIOError:
                os.close(lock)
                yield False
                return
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    os.close(lock)
                    raise
            self._held = root
            try:
                yield True
            finally:
                self._held = None
                os.close(lock)

    @contextmanager
    def _opened(self, folder: str, make: bool = False) -> Iterator[int]:
        """Open a folder below the root; refuse links on the way to it.

        A folder that existed before is not created again: its files would be missing, and nobody would notice.
        """
        if make and self._held is None:
            self._root.mkdir(parents=True, exist_ok=True)
        where = os.open(self._root, _FOLDER) if self._held is None else self._same_root()
        try:
            path = ""
            for part in folder.split("/") if folder else []:
                path = f"{path}/{part}"
                if make and path not in self._made:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=where)
                try:
                    inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=where)
                except OSError:
                    _refuse_link(part, where, f"{self.path}{path}")
                    raise
                os.close(where)
                where = inner
                self._made.add(path)
            yield where
        finally:
            os.close(where)

    def _same_root(self) -> int:
        """Open the root; it must still be the folder that was locked."""
        assert self._held is not None
        try:
            root = os.open(self._root, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            raise RayflError(gone(self.path)) from None
        if not os.path.samestat(os.fstat(root), os.fstat(self._held)):
            os.close(root)
            raise RayflError(gone(self.path))
        return root


_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def _open_plain_file(name: str, flags: int, folder: int, path: str) -> int:
    """Open a regular file in a folder: no link, and no pipe or device, which could block or have side effects."""
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
    except OSError:
        _refuse_link(name, folder, path)
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InputError(f"{path} is not a file: restore it, or run again")
    return file


def _refuse_link(name: str, folder: int, path: str) -> None:
    with suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise InputError(a_link(path))
