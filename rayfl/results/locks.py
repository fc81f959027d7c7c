"""The lock of a run's folder: taking it, and looking whether it is taken without getting in the way."""

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # not on Windows, where nobody can look
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rayfl.results.storage import Storage

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_TRIES = 10


def take(lock: int) -> None:
    """Lock an open file; BlockingIOError if another process holds it, and not just for the moment of a look."""
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(storage: "Storage") -> bool | None:
    """Whether a process is writing to a folder, as far as its lock tells; None where it cannot, as in object stores.

    Makes no file, and keeps no process from writing: see `take`.
    """
    if fcntl is None or "://" in storage.path:
        return None
    try:
        lock = os.open(Path(storage.path) / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a link, or a file of somebody else
        return None
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return False
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several may look at the same time
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    finally:
        os.close(lock)
