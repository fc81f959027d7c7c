"""A folder to write into: a local path, or any pyarrow.fs / fsspec URI. Files appear whole or not at all.

Knows bytes and names, not what is in them: tables are the `writer`'s and `reader`'s.
"""

import errno
import fcntl
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from rayfl.errors import InputError
from rayfl.input_tree import expanded
from rayfl.uris import without_secrets


class Storage:
    """A folder and the files below it; names are relative and use `/`.

    >>> import tempfile
    >>> storage = Storage(tempfile.mkdtemp())
    >>> storage.write("a/b.txt", b"hello")
    >>> storage.list("a"), storage.read("a/b.txt")
    (['b.txt'], b'hello')
    """

    def __init__(self, url: str | Path) -> None:
        text = os.fspath(url)
        if "\0" in text:
            raise InputError(f"{text} holds a NUL character, which no folder's name can: correct it")
        scheme, separator, rest = text.partition("://")
        if separator and not (scheme and rest.strip("/")):
            raise InputError(f"{text} names no folder: write a local path, or a URI such as s3://bucket/folder")
        if separator and scheme == "file" and urlsplit(text).netloc not in ("", "localhost"):
            raise InputError(f"{text} names another host: write file:///folder, with three slashes, or a local path")
        self._backend: _Backend
        if not separator or scheme == "file":
            self._backend = _Local(expanded(unquote(urlsplit(text).path) if separator else text))
        else:
            self._backend = _Remote(text)

    @property
    def path(self) -> str:
        """The absolute local path, or the URI: what `Storage` and `pd.read_parquet` take.

        Secrets that the URI had are left out: whoever opens it again brings them, in the URI or in the environment.
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
        """Make sure that the folder can be made and written to; nothing is left behind."""
        self._attempt(self._backend.probe)

    def create(self) -> None:
        """Make the folder where it is not there yet."""
        self._attempt(self._backend.make)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except InputError:
            raise
        except Exception as error:  # by no list: fsspec has dozens of file systems, each with errors of its own
            reason = getattr(error, "strerror", None) or (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"output folder {self.path} cannot be written to: {reason}; set output.dir to another folder"
            ) from None

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file so that it appears, or replaces the one before, whole or not at all."""
        self._backend.write(name, data)

    def read(self, name: str) -> bytes:
        """Return a file's bytes; FileNotFoundError if it is not there."""
        return self._backend.read(name)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._backend.remove(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder; `""` is the folder itself."""
        return self._backend.exists(name)

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names of what is in `folder`, hidden files aside; nothing if it is not there."""
        return sorted(name for name in self._backend.names(folder) if not name.startswith("."))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this folder while inside; a killed one holds nothing back.

        Only where there are locks: object stores have none, and some network file systems are mounted without.
        """
        with self._backend.locked() as mine:
            if not mine:
                raise InputError(f"{self.path} is being written to by another process: wait for it, or stop it first")
            yield

    def folder(self, name: str) -> "Storage":
        """Return the storage of a folder below this one."""
        path, options = self._parts()
        return Storage(f"{path}/{name}{options}")

    def _parts(self) -> tuple[str, str]:
        """Return the path, and the options that a URI may have behind it: ?endpoint_override=... for S3."""
        full = self._backend.full_path
        path, mark, options = full.partition("?") if "://" in full else (full, "", "")
        return path.rstrip("/"), mark + options

    def __repr__(self) -> str:
        return f"Storage({self.path!r})"


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class _Backend(ABC):
    path: str
    full_path: str  # with secrets: to open it, never to show it

    @abstractmethod
    def make(self) -> None: ...

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

    @contextmanager
    def locked(self) -> Iterator[bool]:
        yield True


class _Local(_Backend):
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.path = self.full_path = str(self._root)

    def make(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise ValueError("it is a file")
        self._root.mkdir(parents=True, exist_ok=True)
        self.probe()

    def probe(self) -> None:
        nearest = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        if not nearest.is_dir():
            raise ValueError("it is a file" if nearest == self._root else f"{nearest} is a file")
        # By doing it: permissions alone do not tell of read-only mounts and full quotas.
        probe = nearest / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Aside in the same folder, since a rename is atomic only within a file system. The dot keeps readers
        # of the folder (pandas, pyarrow, Spark) off it; unique, lest a writer believed dead do harm.
        aside = target.parent / f".{target.name}.{uuid.uuid4().hex[:12]}"
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        # The rename itself is on disk only once the folder is.
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def names(self, folder: str) -> list[str]:
        try:
            return [entry.name for entry in (self._root / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def locked(self) -> Iterator[bool]:
        with (self._root / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield True


class _Remote(_Backend):
    """Object stores and the like, where an upload shows only once it is complete."""

    def __init__(self, url: str) -> None:
        self.full_path = url.rstrip("/")
        self.path = without_secrets(self.full_path)
        try:
            self._fs, self._root = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, ValueError, NotImplementedError):
            self._fs, self._root = _through_fsspec(url)

    def make(self) -> None:
        if self._fs.get_file_info(self._root).type == fs.FileType.File:
            raise ValueError("it is a file")
        self._fs.create_dir(self._root, recursive=True)
        self.probe()

    def probe(self) -> None:
        name = f".probe-{uuid.uuid4().hex}"
        self.write(name, b"")
        self._fs.delete_file(self._at(name))

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        # Object stores need no folders; those remote file systems that do (HDFS) have to get them.
        self._fs.create_dir(self._at(name).rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(self._at(name)) as stream:
            stream.write(data)

    def read(self, name: str) -> bytes:
        with self._fs.open_input_file(self._at(name)) as file:
            return file.read()

    def remove(self, name: str) -> None:
        if self.exists(name):
            self._fs.delete_file(self._at(name))

    def exists(self, name: str) -> bool:
        return self._fs.get_file_info(self._at(name)).type != fs.FileType.NotFound

    def names(self, folder: str) -> list[str]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True)
        return [info.base_name for info in self._fs.get_file_info(selector)]

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")


def _through_fsspec(url: str) -> tuple[fs.FileSystem, str]:
    import fsspec  # comes with torch and ray; needed only for what pyarrow does not know

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # each of its file systems has errors of its own
        raise InputError(
            f"{url} cannot be opened: {str(error) or type(error).__name__}; give a local folder, or a URI that"
            " pyarrow.fs or fsspec knows"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root
