"""A folder at any URI that pyarrow.fs or fsspec supports, such as in an object store."""

import uuid

import pyarrow as pa
from pyarrow import fs

from rayfl.errors import InputError
from rayfl.results.backend import Backend
from rayfl.uris import without_secrets


class RemoteFolder(Backend):
    """A folder in an object store or similar, where an upload becomes visible only when it is complete."""

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
        # Object stores need no folders, but some remote file systems do (HDFS).
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
    import fsspec  # comes with torch and ray; needed only for URIs that pyarrow does not support

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # each of its file systems has its own errors
        raise InputError(
            f"{url} cannot be opened: {str(error) or type(error).__name__}; give a local folder, or a URI that"
            " pyarrow.fs or fsspec knows"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root
