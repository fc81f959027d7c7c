"""Requests to stop: a run that is starting stops at once; later, the current round ends and a checkpoint is written."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: Seconds that the current round gets to end: less than the 30 seconds that Kubernetes and Slurm wait before they kill.
GRACE = 20.0
#: Seconds in which further signals are ignored once the run is stopping, because they would interrupt the clean-up.
TIDYING = 5.0


#: Windows has no alarms: there, the current round may take as long as it needs.
_HAS_ALARM = hasattr(signal, "setitimer")


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM ended the run; it can be resumed from what is written."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects from a process that a signal ended: 130 or 143."""
        return 128 + self.number


STARTING = "stopped while starting; nothing was written"


class Stop:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self, grace: float = GRACE) -> None:
        self.asked: int | None = None
        self.at_once = True
        self._grace = grace
        self._left: float | None = None  # when the run began to tidy up

    def between_rounds(self) -> None:
        """From now on, only remember signals; the caller acts on them between two rounds."""
        if self.asked is not None:  # the code that the signal interrupted has caught the exception
            raise Stopped(self.asked, STARTING)
        self.at_once = False

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        if self._left is not None and time.monotonic() - self._left < TIDYING:
            return
        if self.asked is not None:
            if number == signal.SIGINT:
                self._leave()
            return
        self.asked = number
        if self.at_once:
            self._leave()
        _set_alarm(self._grace)
        # Not through the console: this handler may have interrupted it in the middle of a line.
        os.write(2, b"\nstopping after this round; Ctrl-C again leaves at once\n")

    def on_alarm(self, _: int, __: FrameType | None) -> None:
        """Handle the alarm: the current round has used up its time."""
        self._leave()

    def _leave(self) -> None:
        self.tidy_up()
        raise self.stopped()

    def tidy_up(self) -> None:
        """The run ends now: ignore signals for some seconds. A signal during ray.shutdown() may leave it half done."""
        self._left = time.monotonic()

    def stopped(self) -> Stopped:
        """Return the exception that ends the run."""
        return Stopped(self.asked or signal.SIGINT, STARTING if self.at_once else "")


@contextmanager
def stopping(grace: float = GRACE, *, last: bool = False) -> Iterator[Stop]:
    """Let SIGINT and SIGTERM raise Stopped while a run starts; later they are remembered, see `Stop.between_rounds`.

    If the caller does not act on them within `grace` seconds, or if a second SIGINT comes, Stopped is raised at once,
    wherever the process is. Further signals are ignored during the clean-up; with `last`, they are ignored until the
    process ends, even after a run that has finished, so that its exit code stays right. Inside another `stopping`, the
    outer block's Stop is used. Outside the main thread, signal handlers cannot be set, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Stop()
        return
    outer = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    if isinstance(outer, Stop):
        yield outer
        return
    stop = Stop(grace)
    handlers: dict[int, Any] = {signal.SIGINT: stop.on_signal, signal.SIGTERM: stop.on_signal}
    if _HAS_ALARM:
        handlers[signal.SIGALRM] = stop.on_alarm
    before: dict[int, Any] = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped):
            raise
        # If a handler raises while Ray waits, Ray replaces the exception by its own KeyboardInterrupt.
        raise stop.stopped() from None
    finally:
        if last:
            before |= {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}
        _set_alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_swallowed(number: int) -> Iterator[None]:
    """Raise Stopped at the end if the signal came while the body ran, even if its handler's exception was swallowed.

    Python drops exceptions in callbacks, for example in those that it calls around a fork. A library that starts
    processes may have replaced our handler by its own. The wake-up descriptor receives every signal. Outside the main
    thread, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    hook = sys.unraisablehook

    def quiet(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, (SystemExit, Stopped)):
            hook(dropped)

    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    sys.unraisablehook = quiet
    try:
        yield
        try:
            seen = reader.recv(4096)
        except BlockingIOError:
            seen = b""
        if number in seen:
            raise Stopped(number, STARTING)
    finally:
        sys.unraisablehook = hook
        signal.set_wakeup_fd(descriptor)
        reader.close()
        writer.close()


def _set_alarm(seconds: float) -> None:
    if _HAS_ALARM:
        signal.setitimer(signal.ITIMER_REAL, seconds)
