"""What the C library does with freed memory. With a library other than glibc, these functions do nothing."""

import ctypes
from typing import Any


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, because the next batch needs as much again.

    By default glibc returns every block of a few MB to the system, and the system has to clear the pages of each new
    block before it is used: this took a third of the time for testing.
    """
    mallopt = _function("mallopt")
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # their numbers in malloc.h
    if mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25):  # the maximum of older versions
        mallopt(trim_threshold, 2**30)
        mallopt(top_pad, 2**26)


def return_freed_memory() -> None:
    """Make the C library return all free pages to the system.

    The memory that a recovery frees lies between blocks that stay in use, and by itself glibc returns only memory at
    the end of the heap. Without this call, a process that recovers often would grow without holding more data.
    """
    _function("malloc_trim")(ctypes.c_size_t(0))


def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
