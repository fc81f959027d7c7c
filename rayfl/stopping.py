"""Being asked to stop: at once while a run starts; later the round in hand may end and a checkpoint be written."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds that the round in hand gets to end: less than the 30 that Kubernetes and Slurm leave before they kill.
GRACE = 20.0


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM ended the run; what is written can be resumed."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 130 or 143."""
        return 128 + self.number


STARTING = "stopped while starting; nothing was written"


class Stop:
    """Whether somebody has asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.at_once = True

    def between_rounds(self) -> None:
        """From now on, let signals only be remembered, for the caller to act on between two rounds."""
        if self.asked is not None:  # the code that was interrupted has caught it
            raise Stopped(self.asked, STARTING)
        self.at_once = False


@contextmanager
def stopping(grace: float = GRACE) -> Iterator[Stop]:
    """Let SIGINT and SIGTERM raise Stopped while a run starts; later they are remembered, see `Stop.between_rounds`.

    If the caller does not act on them within `grace` seconds, or if a second SIGINT comes, Stopped is raised where the
    process stands. Outside the main thread signals are somebody else's, and nothing is changed.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def asked(number: int, _: FrameType | None) -> None:
        if stop.asked is not None:
            if number == signal.SIGINT:
                raise Stopped(stop.asked, STARTING if stop.at_once else "")
            return
        stop.asked = number
        if stop.at_once:
            raise Stopped(number, STARTING)
        signal.setitimer(signal.ITIMER_REAL, grace)
        # Not through the console: the handler may have interrupted it in the middle of a line.
        os.write(2, b"\nstopping after this round; Ctrl-C again leaves at once\n")

    def too_late(_: int, __: FrameType | None) -> None:
        raise Stopped(stop.asked or signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGALRM, too_late)
    try:
        yield stop
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped):
            raise
        # Whatever a handler raises while Ray waits, Ray raises a KeyboardInterrupt of its own.
        raise Stopped(stop.asked or signal.SIGINT, STARTING if stop.at_once else "") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
