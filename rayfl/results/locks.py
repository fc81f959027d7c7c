"""The lock of a run's folder: how to take it, and how to check, without blocking anyone, whether it is taken."""

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # on Windows, where the lock cannot be checked
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rayfl.results.storage import Storage

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_TRIES = 10


def take(lock: int) -> None:
    """Lock an open file; BlockingIOError if another process keeps the lock.

    Several attempts are made, because `is_locked` in another process holds the lock for an instant.
    """
    for _ in range(_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(storage: "Storage") -> bool | None:
    """Whether a process is writing to a folder, according to its lock; None if there are no locks.

    Object stores have no locks. This creates no file and does not stop any process from writing: see `take`.
    """
    if fcntl is None or "://" in storage.path:
        return None
    try:
        lock = os.open(Path(storage.path) / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a link, or another user's file
        return None
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return False
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several processes may check at the same time
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    finally:
        os.close(lock)
