"""The errors a user may see. Each message says what is wrong and what to do."""

from typing import Any

from rayfl.uris import without_secrets

_MOST_OF_AN_OBJECT = 80  # characters that a message shows of an object other than a plain value


class RayflError(Exception):
    """Something a user can fix; shown as its message alone, without a traceback and without secrets."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(without_secrets(message))


class InputError(RayflError):
    """Bad config, data, partition or resources, reported before any work starts: one line per fault."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(one_line(without_secrets(line)) for line in lines)
        super().__init__("\n".join(self.lines))

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, ...]]:
        """Keep all lines when the error is pickled and sent to another process."""
        return type(self), self.lines


class ClientError(RayflError):
    """Code that ran on a client failed: the message starts with the client, the round and the traceback."""


class MethodError(RayflError):
    """A method's code failed on the server: the message starts with the round and the traceback."""


class CallbackError(RayflError):
    """A callback's code failed: the message starts with the callback, the round and the traceback."""


class DivergedError(RayflError):
    """A model has values that are not finite, or outside the range in which sums are exact."""


class LostError(RayflError):
    """Actors died or do not answer. The run recovers by itself; users see this error only if it cannot."""


class NobodyLeftError(LostError):
    """The run cannot go on by itself: no client actor is left and none can be started, or Ray's server is silent."""


def closest(name: str, allowed: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar allowed name, or nothing if none is similar.

    >>> closest("FedAvgg", ["fedavg", "fedac"]), closest("csv", ["svhn", "npz"])
    (" (did you mean 'fedavg'?)", '')
    """
    import difflib

    names = {other.lower(): other for other in allowed}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f" (did you mean '{names[near[0]]}'?)" if near else ""


def shown(value: Any, most: int = 200) -> str:
    """Return the value as a message shows it: on one line, shortened if it is long; for an object, only its type.

    >>> shown([1, 2]), shown("a" * 30, most=9)
    ('[1, 2]', "'aaaaaaaa... (32 characters)")
    >>> import numpy
    >>> shown({"lr": numpy.zeros((3, 2))})
    "{'lr': (ndarray of shape (3, 2))}"
    """
    try:
        text = repr(_described(value))
    except (ValueError, RecursionError):  # Python refuses to print integers with thousands of digits
        digits = f" of about {value.bit_length() * 0.30103:.0f} digits" if isinstance(value, int) else ""
        return f"({type(value).__name__}{digits})"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


class _Text(str):
    """Text that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _described(value: Any) -> Any:
    """Return plain values unchanged, and a short description instead of arrays, tables and other large objects."""
    if value is None or isinstance(value, str | int | float | type):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(_described, value))
    if type(value) is dict:
        return {key: _described(inner) for key, inner in value.items()}
    kind, shape = type(value).__name__, getattr(value, "shape", ())
    if shape != ():
        return _Text(f"({kind} of shape {tuple(shape)})" if isinstance(shape, tuple) else f"({kind})")
    try:
        text = repr(value)
    except Exception:  # the repr of a user's object may raise anything
        text = "\n"
    return _Text(f"({kind})" if "\n" in text or len(text) > _MOST_OF_AN_OBJECT else text)


def main_line(message: str) -> str:
    """Return the line of an error message that says what went wrong: below a traceback the error, else the first line.

    >>> main_line("failed in round 3:\\nTraceback ...\\n  File ...\\nValueError: no\\nonce that is fixed, ...")
    'ValueError: no'
    """
    lines = message.strip().splitlines()
    tracebacks = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    below = lines[tracebacks[-1] + 1 :] if tracebacks else []
    return next((line for line in [*below, *lines] if line and not line[0].isspace()), "")


def one_line(text: str) -> str:
    """Escape line breaks and other characters that are not printable: values may come from any file."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
