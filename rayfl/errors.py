"""The errors a user may see. Each message is whole in itself: what is wrong, and the cure."""

from typing import Any

from rayfl.uris import without_secrets


class RayflError(Exception):
    """Something a user can mend; shown as its message alone, without a traceback and without secrets."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(without_secrets(message))


class InputError(RayflError):
    """Bad config, data, partition or resources, told before any work starts: one line per fault."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(one_line(without_secrets(line)) for line in lines)
        super().__init__("\n".join(self.lines))

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, ...]]:
        """Cross from process to process with all lines."""
        return type(self), self.lines


class ClientError(RayflError):
    """A client's own code failed: the message starts with the client, the round and its traceback."""


class MethodError(RayflError):
    """A method's own code failed on the server: the message starts with the round and its traceback."""


class CallbackError(RayflError):
    """A callback's own code failed: the message starts with the callback, the round and its traceback."""


class DivergedError(RayflError):
    """A model left the finite numbers, or the range in which sums are exact."""


class LostError(RayflError):
    """Actors died or do not answer. The run takes care of it; users see this only when it cannot."""


class NobodyLeftError(LostError):
    """No client actor is left, and none can be started: the run cannot go on by itself."""


def closest(name: str, allowed: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest allowed name, or nothing.

    >>> closest("fedavgg", ["fedavg", "fedac"])
    " (did you mean 'fedavg'?)"
    """
    import difflib

    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else ""


def shown(value: Any, most: int = 200) -> str:
    """Return the value as a message shows it: on one line, and cut where it is long.

    >>> shown([1, 2]), shown("a" * 30, most=9)
    ('[1, 2]', "'aaaaaaaa... (32 characters)")
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not write integers of thousands of digits
        digits = f" of about {value.bit_length() * 0.30103:.0f} digits" if isinstance(value, int) else ""
        return f"({type(value).__name__}{digits})"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def one_line(text: str) -> str:
    """Escape line breaks, and all else that a terminal would not show as it is: values come from files."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
