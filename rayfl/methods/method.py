"""What a method is: a server program that talks to its clients through the federation's collective operations."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from rayfl.config import Section
from rayfl.federation.interface import Federation, Models


class Method(ABC):
    """Subclass this, give `round` and `tested_models`, and name the class in a config: `method.name: pkg.mod:Class`.

    `self.fed` reaches the clients, `self.options` are the checked options, and everything else that the server
    remembers goes into `self.state`, one dataclass.
    """

    #: The method's own options: keys, types, defaults and help in one place.
    Options: ClassVar[type[Section]] = Section
    #: Where it is described, for `rayfl methods`.
    paper: ClassVar[str] = ""

    state: Any

    def __init__(self, options: Any, fed: Federation, seed: int) -> None:
        self.options, self.fed, self.seed = options, fed, seed
        self.start()

    @classmethod
    def check(cls, options: Any, clients: int, cohort: int) -> list[str]:
        """Return a line for each thing that this method cannot do with so many clients; called before any work."""
        return []

    def start(self) -> None:  # noqa: B027 - a method without server state has nothing to start
        """Set up `self.state` before the first round."""

    @abstractmethod
    def round(self, cohort: np.ndarray) -> None:
        """Run one round with these clients."""

    @abstractmethod
    def tested_models(self) -> Models | None:
        """Return the model that each client is tested with; None: the one that it keeps."""

    def also_tested(self) -> Mapping[str, Models]:
        """Return models to test besides; their accuracy is reported as `<name>_accuracy` in extras."""
        return {}

    def assignment(self) -> np.ndarray | None:
        """Return each client's cluster (-1: none yet), or None for a method without clusters."""
        return None

    def cluster_statistics(self) -> Mapping[str, np.ndarray]:
        """Return `intra`, `inter` and `granularity` of each cluster in use, in the order of their numbers."""
        return {}

    def extras(self) -> Mapping[str, Any]:
        """Return what only this method reports."""
        return {}
