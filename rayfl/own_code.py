"""Code of users' own, named in a config as `package.module:Name`: where it is found, and how its errors are told."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rayfl.config import Config
from rayfl.errors import RayflError


def import_own(name: str) -> ModuleType:
    """Import a module that a config names, also from the current folder; ImportError if it calls sys.exit()."""
    _search_current_folder()
    try:
        return importlib.import_module(name)
    except SystemExit as left:
        raise ImportError(f"it calls sys.exit({left.code!r}) when it is imported") from None


def search_path(config: Config) -> list[str]:
    """Return where actors are to look for modules: where this process does."""
    if any(":" in name for name in (config.method.name, config.model.name)):
        _search_current_folder()
    return list(sys.path)


def _search_current_folder() -> None:
    # Last, and only when there is something to import: the folder may be somebody else's, with a pandas.py in it.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@contextmanager
def told_as(kind: type[RayflError], what: str) -> Iterator[None]:
    """Let errors of the code inside end with an error of this kind, with their traceback; sys.exit() is one of them."""
    try:
        yield
    except RayflError:
        raise
    except (Exception, SystemExit) as error:
        if hasattr(error, "ray_terminate_msg"):  # Ray's own way to end an actor, which is a loss and no error
            raise
        inside = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        lines = "".join(traceback.format_exception(type(error), error, inside)).rstrip()
        raise kind(f"{what}:\n{lines}") from None


@contextmanager
def exits_told() -> Iterator[None]:
    """Take sys.exit() in code that a config names for the error that it is: the command has not succeeded."""
    try:
        yield
    except SystemExit as left:
        lines = traceback.format_exc().rstrip()
        raise RayflError(f"code that the config names called sys.exit({left.code!r}):\n{lines}") from None
