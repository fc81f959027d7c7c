"""A folder to write into: a local path, or any pyarrow.fs / fsspec URI. Files appear whole or not at all.

Knows bytes and names, not what is in them: tables are the `writer`'s and `reader`'s. A folder may come from somebody
else: links inside it are never followed, and only plain files are opened.
"""

import errno
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from rayfl.errors import InputError, RayflError
from rayfl.input_tree import expanded
from rayfl.results.locks import NO_LOCKS, take
from rayfl.uris import without_secrets

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

    def claim(self, name: str, data: bytes) -> bool:
        """Make the folder with a first file in it; False if it is there: of several processes, only one is told True.

        A folder without the file is never seen. Object stores have no folders to make: there two processes may both be
        told True at the same moment.
        """
        return self._attempt(lambda: self._backend.claim(name, data))

    def _attempt(self, action: Callable[[], T]) -> T:
        try:
            return action()
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

    def folders(self, folder: str = "") -> list[str]:
        """Return the sorted names of the folders in `folder`; hidden ones and links are left out."""
        return sorted(name for name in self._backend.folders(folder) if not name.startswith("."))

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names of what is in `folder`, hidden files aside; nothing if it is not there."""
        return sorted(name for name in self._backend.names(folder) if not name.startswith("."))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this folder while inside; a killed one holds nothing back.

        Only where there are locks: object stores have none, and some network file systems are mounted without.
        While inside, the path must go on leading to this folder: after it was deleted, nothing makes it anew.
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
        """Return the path, and the options that a URI may have behind it: ?endpoint_override=... for S3."""
        full = self._backend.full_path
        path, mark, options = full.partition("?") if "://" in full else (full, "", "")
        return path.rstrip("/"), mark + options

    def __repr__(self) -> str:
        return f"Storage({self.path!r})"


class _Backend(ABC):
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
        yield True


class _Local(_Backend):
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.path = self.full_path = str(self._root)
        self._held: int | None = None  # the folder, opened, while it is locked
        self._made: set[str] = set()  # folders inside that are known to be there

    def make(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise ValueError("it is a file")
        self._root.mkdir(parents=True, exist_ok=True)
        self.probe()

    def claim(self, name: str, data: bytes) -> bool:
        self._root.parent.mkdir(parents=True, exist_ok=True)
        aside = self._root.parent / f".new-{uuid.uuid4().hex}"
        try:
            aside.mkdir()
            _Local(aside).write(name, data)
            aside.rename(self._root)  # which no folder that has something in it lets happen
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return False
            raise
        return True

    def probe(self) -> None:
        nearest = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        if not nearest.is_dir():
            raise ValueError("it is a file" if nearest == self._root else f"{nearest} is a file")
        # By doing it: permissions alone do not tell of read-only mounts and full quotas.
        probe = nearest / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        folder, _, name = name.rpartition("/")
        with self._opened(folder, make=True) as where:
            # Aside in the same folder, since a rename is atomic only within a file system. The dot keeps readers
            # of the folder (pandas, pyarrow, Spark) off it; unique, lest a writer believed dead do harm.
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
            os.fsync(where)  # the rename itself is on disk only once the folder is

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

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

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
        """Open a folder below the root, and no link on the way to it.

        A folder that was there before is not made again: what it held would be missing without a word.
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
        """Open the root, which must still be the folder that was locked."""
        assert self._held is not None
        try:
            root = os.open(self._root, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            raise RayflError(_gone(self.path)) from None
        if not os.path.samestat(os.fstat(root), os.fstat(self._held)):
            os.close(root)
            raise RayflError(_gone(self.path))
        return root


_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def _open_plain_file(name: str, flags: int, folder: int, path: str) -> int:
    """Open a file of a folder: no link, and nothing that would block or do more than hold bytes."""
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
            raise InputError(f"{path} is a link, and links in a run folder are not followed: put what it names there")


def _gone(path: str) -> str:
    return f"{path} was deleted, moved or replaced while the run was writing to it, and the run has ended: run again"


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

    def claim(self, name: str, data: bytes) -> bool:
        if self.exists(""):
            return False
        self.make()
        self.write(name, data)
        return True

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

    def folders(self, folder: str) -> list[str]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True)
        return [info.base_name for info in self._fs.get_file_info(selector) if info.type == fs.FileType.Directory]

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
