"""rayfl's methods with a stopwatch on what they ask of their clients; a config names one as `watched:FedAvg`.

The times go into `extras`: `asked` by operation, `shared` for putting models where all actors read them. What is
left of a round's seconds is the server's own work.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rayfl.methods import fedac, fedavg, fesem, ifca
from rayfl.methods.method import Method


class Watched(Method):
    """A mixin with the stopwatch: among the bases of a class, it comes before the method."""

    def start(self) -> None:
        super().start()
        self._asked: dict[str, float] = defaultdict(float)
        self._shared = 0.0
        ask, share = self.fed._ask, self.fed._share

        def timed_ask(operation: str, *arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return ask(operation, *arguments, **named)
            finally:
                self._asked[operation] += time.perf_counter() - begin

        def timed_share(arrays: Any) -> Any:
            begin = time.perf_counter()
            try:
                return share(arrays)
            finally:
                self._shared += time.perf_counter() - begin

        vars(self.fed).update(_ask=timed_ask, _share=timed_share)

    def extras(self) -> Mapping[str, Any]:
        extras = {**super().extras(), "asked": dict(self._asked), "shared": self._shared}
        self._asked.clear()
        self._shared = 0.0
        return extras


class FedAvg(Watched, fedavg.FedAvg): ...


class IFCA(Watched, ifca.IFCA): ...


class FedAC(Watched, fedac.FedAC): ...


class FeSEM(Watched, fesem.FeSEM): ...
