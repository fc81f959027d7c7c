"""The file that records that a callback ended a run before its last round: such a run is complete."""

import json
from dataclasses import asdict, dataclass

from rayfl.errors import InputError
from rayfl.results.storage import Storage

FILE = "stopped_early.json"


@dataclass(frozen=True)
class StoppedEarly:
    """When and why a run was ended.

    `rounds` is the number of rounds in the run's config. Once the config asks for more, this record is out of date.
    """

    round: int
    rounds: int
    reason: str


def write_stopped(storage: Storage, stopped: StoppedEarly) -> None:
    """Write the file, after the rows of the run's last round."""
    storage.write(FILE, (json.dumps(asdict(stopped), indent=1) + "\n").encode())


def read_stopped(storage: Storage) -> StoppedEarly | None:
    """Read the file; None if there is none."""
    stopped: StoppedEarly | None
    try:
        stopped = StoppedEarly(**json.loads(storage.read(FILE)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        stopped = None
    if stopped is None or not _is_possible(stopped):
        raise InputError(f"{storage.path}/{FILE} is damaged: restore it, or remove it to go on with the run")
    return stopped


def _is_possible(stopped: StoppedEarly) -> bool:
    numbers = type(stopped.round) is int and type(stopped.rounds) is int and isinstance(stopped.reason, str)
    return numbers and 1 <= stopped.round < stopped.rounds
