"""The federation in this process: no Ray, one worker. For tests, debugging, and small runs."""

from collections.abc import Mapping
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from rayfl.client.worker import Worker
from rayfl.errors import ClientError
from rayfl.federation.facts import Facts
from rayfl.federation.interface import Federation
from rayfl.own_code import told_as


class SerialFederation(Federation):
    """Calls its one worker directly. Computes on one thread, as actors do, and so gives the same bits."""

    def __init__(self, facts: Facts, worker: Worker) -> None:
        super().__init__(facts, workers=1)
        self._worker = worker
        self._threads = torch.get_num_threads()
        self._limits = threadpool_limits(1)
        torch.set_num_threads(1)

    def _share(self, arrays: Any) -> Any:
        return arrays

    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        call = getattr(self._worker, operation)
        with told_as(ClientError, f"clients failed in '{operation}'"):
            return {worker: call(shared, *arguments) for worker, arguments in shares.items()}

    def close(self) -> None:
        """Restore the process's number of threads."""
        self._limits.restore_original_limits()
        torch.set_num_threads(self._threads)
