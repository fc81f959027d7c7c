"""What all local folders have in common: how they are created, and the messages about links and deleted folders."""

import errno
import shutil
import uuid
from pathlib import Path

from rayfl.results.backend import Backend


class LocalFolder(Backend):
    """A local folder by its absolute path."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.path = self.full_path = str(self._root)

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
            type(self)(aside).write(name, data)
            aside.rename(self._root)  # fails if a folder with any content already has this name
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
        # Try to write: permissions alone do not show read-only mounts and full quotas.
        probe = nearest / f".probe-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()


def a_link(path: str) -> str:
    """Return a message that a file or folder is a link."""
    return f"{path} is a link, and links in a run folder are not followed: replace it by what it points to"


def gone(path: str) -> str:
    """Return a message that the folder no longer exists."""
    return f"{path} was deleted, moved or replaced while the run was writing to it, and the run has ended: run again"
