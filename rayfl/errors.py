"""The errors a user may see. Each message is whole in itself: what is wrong, and the cure."""


class RayflError(Exception):
    """Something a user can mend; shown as its message alone, without a traceback."""

    exit_code = 1


class InputError(RayflError):
    """Bad config, data, partition or resources, told before any work starts: one line per fault."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class ClientError(RayflError):
    """A client's own code failed: the message starts with the client, the round and its traceback."""


class MethodError(RayflError):
    """A method's own code failed on the server: the message starts with the round and its traceback."""


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
