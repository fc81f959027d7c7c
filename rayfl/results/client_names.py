"""The names of a run's clients, if the data name them: a JSON list, in the order of the clients' numbers."""

import json
from collections.abc import Sequence

from rayfl.errors import InputError
from rayfl.results.storage import Storage

FILE = "client_names.json"


def write_client_names(storage: Storage, names: Sequence[str]) -> None:
    """Write the names."""
    storage.write(FILE, (json.dumps(list(names), indent=0, ensure_ascii=False) + "\n").encode())


def read_client_names(storage: Storage) -> dict[int, str]:
    """Return the names by client number; an empty dict if clients have no names."""
    try:
        names = json.loads(storage.read(FILE))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{storage.path}/{FILE} is damaged: restore it, or remove it to do without the names")
    return dict(enumerate(names))
