"""The client actor: a worker in a process of its own.

Importing this costs little, and the driver does it; torch comes with the first actor made of it, in its own process.
"""

import gc
import os
import sys
from dataclasses import dataclass
from typing import Any

import ray
from threadpoolctl import threadpool_limits

from rayfl.client.allocator import keep_freed_memory, return_freed_memory
from rayfl.client.devices import request_determinism
from rayfl.config import Config
from rayfl.data import Dataset, Partition
from rayfl.errors import ClientError
from rayfl.own_code import told_as

#: Calls of this group are answered while the actor computes.
HEALTH = "health"


@dataclass(frozen=True)
class Seat:
    """Where a client actor sits."""

    node: str
    gpus: list[int]
    device: str
    cpu: str  # its capability, such as AVX2
    pid: int


class ClientActor:
    """Hosts many clients, on the device that Ray gave it. It starts, and imports, while the data are still loading."""

    def __init__(self, search_path: list[str]) -> None:
        prepare_process(search_path)
        keep_freed_memory()
        self._gpus = [int(g) for g in ray.get_gpu_ids()]
        if self._gpus:
            request_determinism()
        import torch

        from rayfl.client.worker import Worker

        # Ray hides all other GPUs, so ours is number 0; on a machine that only counts GPUs there is none to use.
        self._device = "cuda:0" if self._gpus and torch.cuda.is_available() else "cpu"
        self._make_worker = Worker
        self._worker: Worker
        self._epoch = 0

    def open(self, epoch: int, config: Config, dataset: Dataset, partition: Partition) -> Seat:
        """Take in the data; return where this actor is, which also says that it is ready."""
        import torch

        from rayfl.client.choice import cpu_capability

        # Sums inside a matrix product may depend on the number of threads: one everywhere gives the same bits. Here,
        # not at the start, since Ray may have made this actor in another thread than the one that calls run in.
        torch.set_num_threads(1)
        threadpool_limits(1)  # again: torch has brought libraries with pools of their own
        self._worker = self._make_worker(config, dataset, partition, self._device)
        self._epoch = epoch
        return Seat(ray.get_runtime_context().get_node_id(), self._gpus, self._device, cpu_capability(), os.getpid())

    def renew(self, epoch: int) -> None:
        """Forget all clients, and from now on do only what is asked in this epoch.

        A server that died may have left orders here; they must not touch what is restored now.
        """
        self._epoch = epoch
        self._worker.forget(None)

    def rest(self) -> None:
        """Drop all that belongs to the run, which has ended; `open` makes this actor part of the next."""
        self._epoch = 0
        del self._worker
        gc.collect()
        return_freed_memory()

    def call(self, epoch: int, operation: str, shared: Any, *arguments: Any) -> Any:
        """Do one operation of the worker."""
        if epoch != self._epoch:
            raise RuntimeError(f"{operation} was asked for before a recovery, and comes too late")
        with told_as(ClientError, f"clients failed in '{operation}'"):
            return getattr(self._worker, operation)(shared, *arguments)

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Answer, whatever else goes on."""


def prepare_process(search_path: list[str]) -> None:
    """Make an actor's process compute and import as the driver's would."""
    # A user's own method or model is imported by name here too, from where the driver would find it.
    sys.path.extend(p for p in search_path if p not in sys.path)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # for libraries that are not yet there, and in every thread
    threadpool_limits(1)
