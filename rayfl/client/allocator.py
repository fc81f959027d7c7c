"""What the C library does with memory that is freed. Where it is not glibc, or does not listen, nothing is done."""

import ctypes
from typing import Any


def keep_freed_memory() -> None:
    """Let the C library hold on to memory that is freed: the next batch wants as much.

    By default glibc gives every map of some MB back to the system, and each time a new one is written to, the system
    clears its pages first: a third of the time that testing takes.
    """
    mallopt = _function("mallopt")
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # their numbers in malloc.h
    if mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25):  # the most that older ones take
        mallopt(trim_threshold, 2**30)
        mallopt(top_pad, 2**26)


def return_freed_memory() -> None:
    """Let the C library give the system whatever whole pages are free.

    What a recovery frees lies in holes between what is kept, and glibc by itself gives back only what is at the end: a
    process that recovers often would grow though it holds no more than before.
    """
    _function("malloc_trim")(ctypes.c_size_t(0))


def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
