"""Data of a user's own: a function that a config names, and objects that a Python program handed to `rayfl.run`."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rayfl.config import DataConfig
from rayfl.config.data import OwnData, PythonData
from rayfl.data.sources.objects import Data, collected
from rayfl.data.sources.samples import Samples
from rayfl.data.sources.tables import Columns, columns_of
from rayfl.errors import InputError, RayflError
from rayfl.own_code import imported, reason, told_as


class OwnFunction:
    """What `package.module:function` returns for data.options."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Call the function and check what it returns."""
        assert isinstance(config, OwnData)
        function = imported("data.source", config.source, "function")
        if not callable(function):
            raise InputError(f"{config.place} is a {type(function).__name__}: it must be a function that returns data")
        try:
            inspect.signature(function).bind(**config.options)
        except TypeError as error:
            raise InputError(f"data.options={config.options} do not fit {config.place}: {reason(error)}") from None
        except ValueError:  # some functions do not say what they take
            pass
        with told_as(RayflError, f"{config.place} failed"):
            value = function(**config.options)
        return collected(value, columns_of(config), config.place).samples(column, config.place)


class FromPython:
    """Objects that `given_data` offers while a run prepares."""

    numbers = owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Return the data of this digest."""
        assert isinstance(config, PythonData)
        data = _OFFERED.get(config.digest)
        if data is None:
            other = "the data given now are others" if _OFFERED else "none are given now"
            raise InputError(
                f"data.source=python: this run's data came from a Python program (digest {config.digest}), and {other}:"
                " give the same again, with data=..."
            )
        return data.samples(column, "data")


#: Data by their digest, while a `given_data` is open. Not a context variable: a run prepares in a thread of its own.
_OFFERED: dict[str, Data] = {}


@contextmanager
def given_data(value: Any) -> Iterator[dict[str, Any]]:
    """Offer data to the run that is prepared inside; yields the keys that stand for them in its config.

    To resume such a run, offer the same data again: others have another digest and are refused.
    """
    data = collected(value, Columns(), "data")
    digest = data.digest()
    _OFFERED[digest] = data
    try:
        yield {"source": "python", "digest": digest}
    finally:
        _OFFERED.pop(digest, None)
