"""The client actor: a worker in a process of its own.

Importing this costs little, and the driver does it; torch comes with the first actor made of it, in its own process.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

import ray
from threadpoolctl import threadpool_limits

from rayfl.config import Config
from rayfl.data import Dataset, Partition


@dataclass(frozen=True)
class Seat:
    """Where a client actor sits."""

    node: str
    gpus: list[int]
    device: str
    pid: int


class ClientActor:
    """Hosts many clients, on the device that Ray gave it. It starts, and imports, while the data are still loading."""

    def __init__(self, search_path: list[str]) -> None:
        prepare_process(search_path)
        import torch

        from rayfl.federation.worker import Worker

        # Sums inside a matrix product may depend on the number of threads: one everywhere gives the same bits.
        torch.set_num_threads(1)
        threadpool_limits(1)  # again: torch has brought libraries with pools of their own
        self._gpus = [int(g) for g in ray.get_gpu_ids()]
        # Ray hides all other GPUs, so ours is number 0; on a machine that only counts GPUs there is none to use.
        self._device = "cuda:0" if self._gpus and torch.cuda.is_available() else "cpu"
        self._make_worker = Worker
        self._worker: Worker

    def open(self, config: Config, dataset: Dataset, partition: Partition) -> Seat:
        """Take in the data; return where this actor is, which also says that it is ready."""
        self._worker = self._make_worker(config, dataset, partition, self._device)
        return Seat(ray.get_runtime_context().get_node_id(), self._gpus, self._device, os.getpid())

    def call(self, operation: str, shared: Any, *arguments: Any) -> Any:
        """Do one operation of the worker."""
        return getattr(self._worker, operation)(shared, *arguments)


def prepare_process(search_path: list[str]) -> None:
    """Make an actor's process compute and import as the driver's would."""
    # A user's own method or model is imported by name here too, from where the driver would find it.
    sys.path.extend(p for p in search_path if p not in sys.path)
    threadpool_limits(1)
