"""Users' own code by import path: `package.module:Name`. Whatever is wrong with it is told in one line."""

import importlib
from types import ModuleType
from typing import Any

from rayfl.errors import InputError

_FORM = "write package.module:Name, such as my_file:MyClass"


def import_module_of(key: str, path: str) -> tuple[ModuleType, str]:
    """Import the module of `path`, which stands at config key `key`; return it, and the name after the colon."""
    module, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"{key}={path!r} is no import path: {_FORM}")
    try:
        return importlib.import_module(module), name
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise InputError(
                f"{key}={path}: cannot import {module}, there is no module '{error.name}': install it, or put its"
                " folder on PYTHONPATH"
            ) from None
        raise InputError(f"{key}={path}: importing '{module}' fails: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{key}={path}: importing '{module}' fails: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the kind and the first line of an error in a user's own code."""
    text: Any = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"
