"""The folder of a new run: an unused name, and the config as its first file."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rayfl.config import Config
from rayfl.errors import InputError
from rayfl.results import Storage
from rayfl.version import __version__

CONFIG = "config.yaml"


def config_file(config: Config) -> bytes:
    """Return the bytes of config.yaml."""
    return f"# rayfl {__version__}\n{config.to_yaml()}".encode()


def check_output(config: Config) -> None:
    """Make sure, before anything starts, that the run can write and that its name is not taken."""
    base = Storage(config.output.dir)
    base.check()
    if config.name is not None and base.exists(config.name):
        raise InputError(_taken(base.folder(config.name)))


@contextmanager
def new_folder(config: Config) -> Iterator[Storage]:
    """Create the run's folder, with its config in it, and lock it; never use a folder that another run has created."""
    base, first = Storage(config.output.dir), (CONFIG, config_file(config))
    if config.name is not None:
        storage = base.folder(config.name)
        if not storage.claim(*first):
            raise InputError(_taken(storage))
    else:
        storage = next(folder for folder in map(base.folder, _names(config)) if folder.claim(*first))
    with storage.locked():
        yield storage


def _names(config: Config) -> Iterator[str]:
    """Yield names to try for a run without a name, because several runs may start in the same second."""
    method = config.method.name.rpartition(":")[2]
    source = config.data.source.rpartition(":")[2]
    stem = f"{source}-{method}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    if "://" not in Storage(config.output.dir).path:
        yield stem
        yield from (f"{stem}-{number}" for number in range(2, 1000))
    while True:  # random names, because object stores cannot tell which run was first
        yield f"{stem}-{uuid.uuid4().hex[:8]}"


def _taken(storage: Storage) -> str:
    return (
        f"{storage.path} exists already, and results are never overwritten: choose another name or output.dir, or"
        " remove the folder"
    )
