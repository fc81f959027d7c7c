"""A folder to write into: a local path, or any pyarrow.fs / fsspec URI. Files appear complete or not at all.

This module handles names and bytes, not their meaning; `writer` and `reader` handle tables. The different kinds of
folders are in `posix_folder`, `plain_folder` and `remote_folder`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from rayfl.errors import InputError
from rayfl.input_tree import expanded
from rayfl.results.backend import Backend
from rayfl.results.local_folder import LocalFolder
from rayfl.results.remote_folder import RemoteFolder

T = TypeVar("T")


class Storage:
    """A folder and the files below it; names are relative and use `/`.

    >>> import tempfile
    >>> storage = Storage(tempfile.mkdtemp())
    >>> storage.write("a/b.txt", b"hello")
    >>> storage.list("a"), storage.read("a/b.txt")
    (['b.txt'], b'hello')
    """

    def __init__(self, url: str | Path) -> None:
        if not isinstance(url, str | os.PathLike):
            raise InputError(f"a {type(url).__name__} is no folder: give its path, or a URI")
        text = os.fspath(url)
        if "\0" in text:
            raise InputError(f"{text} holds a NUL character, which no folder's name can: correct it")
        scheme, separator, rest = text.partition("://")
        if separator and not (scheme and rest.strip("/")):
            raise InputError(f"{text} names no folder: write a local path, or a URI such as s3://bucket/folder")
        if separator and scheme == "file" and urlsplit(text).netloc not in ("", "localhost"):
            raise InputError(f"{text} names another host: write file:///folder, with three slashes, or a local path")
        self._backend: Backend
        if not separator or scheme == "file":
            self._backend = _local(expanded(unquote(urlsplit(text).path) if separator else text))
        else:
            self._backend = RemoteFolder(text)

    @property
    def path(self) -> str:
        """The absolute local path, or the URI: what `Storage` and `pd.read_parquet` take.

        Secrets in the URI are left out. To open it again, give them in the URI or in the environment.
        """
        return self._backend.path

    @property
    def has_secrets(self) -> bool:
        """Whether this storage was opened with secrets that its path does not show."""
        return self._backend.path != self._backend.full_path

    @property
    def name(self) -> str:
        """The folder's own name: the last part of the path."""
        return self._parts()[0].rpartition("/")[2]

    def check(self) -> None:
        """Make sure that the folder can be created and written to; no file stays behind."""
        self._attempt(self._backend.probe)

    def create(self) -> None:
        """Create the folder if it does not exist."""
        self._attempt(self._backend.make)

    def claim(self, name: str, data: bytes) -> bool:
        """Create the folder with a first file in it; False if it exists. Of several processes, only one gets True.

        The folder never appears without the file. Object stores have no folders: there, two processes may both get True
        at the same moment.
        """
        return self._attempt(lambda: self._backend.claim(name, data))

    def _attempt(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except InputError:
            raise
        except Exception as error:  # any error: fsspec has dozens of file systems, each with its own errors
            reason = getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"output folder {self.path} cannot be written to: {reason}; set output.dir to another folder"
            ) from None

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file, or replace the old one, so that readers see it complete or not at all."""
        self._backend.write(name, data)

    def read(self, name: str) -> bytes:
        """Return a file's bytes; FileNotFoundError if it does not exist."""
        return self._backend.read(name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._backend.remove(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder; `""` is the folder itself."""
        return self._backend.exists(name)

    def folders(self, folder: str = "") -> list[str]:
        """Return the sorted names of the folders in `folder`; hidden ones and links are left out."""
        return sorted(name for name in self._backend.folders(folder) if not name.startswith("."))

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names in `folder`, without hidden files; an empty list if it does not exist."""
        return sorted(name for name in self._backend.names(folder) if not name.startswith("."))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this folder within the block; the lock of a killed process is released.

        This needs a file system with locks. Object stores have none, and some network file systems are mounted without
        locks.
        Within the block, the path must keep leading to this folder: a folder that is deleted is not created again.
        """
        with ExitStack() as stack:
            try:
                mine = stack.enter_context(self._backend.locked())
            except OSError as error:
                raise InputError(
                    f"{self.path} cannot be locked: {error.strerror or error}; fix that, or set output.dir to another"
                    " folder"
                ) from None
            if not mine:
                raise InputError(f"{self.path} is being written to by another process: wait for it, or stop it first")
            yield

    def folder(self, name: str) -> "Storage":
        """Return the storage of a folder below this one."""
        path, options = self._parts()
        return Storage(f"{path}/{name}{options}")

    def _parts(self) -> tuple[str, str]:
        """Return the path, and the options that may follow it in a URI: ?endpoint_override=... for S3."""
        full = self._backend.full_path
        path, mark, options = full.partition("?") if "://" in full else (full, "", "")
        return path.rstrip("/"), mark + options

    def __repr__(self) -> str:
        return f"Storage({self.path!r})"


def _local(root: Path) -> LocalFolder:
    """Return a local folder, in the safest form that this system supports."""
    try:
        from rayfl.results.posix_folder import PosixFolder
    except (ImportError, AttributeError):  # Windows has no fcntl, and no O_DIRECTORY
        from rayfl.results.plain_folder import PlainFolder

        return PlainFolder(root)
    return PosixFolder(root)
