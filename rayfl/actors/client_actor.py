"""The client actor: a worker in its own process.

The driver imports this module too, so it must import quickly. Torch is imported only inside the actor's process.
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

#: Ray answers calls of this concurrency group even while the actor computes.
HEALTH = "health"


@dataclass(frozen=True)
class Seat:
    """The node, the device and the process of a client actor."""

    node: str
    gpus: list[int]
    device: str
    cpu: str  # the CPU's capability, such as AVX2
    pid: int


class ClientActor:
    """Hosts many clients, on the device that Ray gave it. It starts and imports torch while the data still load."""

    def __init__(self, search_path: list[str]) -> None:
        prepare_process(search_path)
        keep_freed_memory()
        self._gpus = [int(g) for g in ray.get_gpu_ids()]
        if self._gpus:
            request_determinism()
        import torch

        from rayfl.client.worker import Worker

        # Ray hides all other GPUs, so ours is number 0. Ray may also be told of GPUs that the machine does not have
        # (as in tests); then there is none to use.
        self._device = "cuda:0" if self._gpus and torch.cuda.is_available() else "cpu"
        self._make_worker = Worker
        self._worker: Worker
        self._epoch = 0

    def open(self, epoch: int, config: Config, dataset: Dataset, partition: Partition) -> Seat:
        """Receive the data; return where this actor runs. The answer also tells the driver that the actor is ready."""
        import torch

        from rayfl.client.choice import cpu_capability

        # Sums inside a matrix product may depend on the number of threads, so every process uses one thread. This is
        # set here and not in __init__, because Ray may run __init__ and later calls in different threads.
        torch.set_num_threads(1)
        threadpool_limits(1)  # again: torch has loaded libraries that have their own thread pools
        self._worker = self._make_worker(config, dataset, partition, self._device)
        self._epoch = epoch
        return Seat(ray.get_runtime_context().get_node_id(), self._gpus, self._device, cpu_capability(), os.getpid())

    def renew(self, epoch: int) -> None:
        """Forget all clients, and from now on accept only calls of this epoch.

        Calls of a server that has died may still be waiting here; they must not change what is restored now.
        """
        self._epoch = epoch
        self._worker.forget(None)

    def rest(self) -> None:
        """Drop everything of the run that has ended; `open` makes this actor part of the next run."""
        self._epoch = 0
        del self._worker
        gc.collect()
        return_freed_memory()

    def call(self, epoch: int, operation: str, shared: Any, *arguments: Any) -> Any:
        """Do one operation of the worker."""
        if epoch != self._epoch:
            raise RuntimeError(f"the call of {operation} was sent before a recovery and is no longer valid")
        with told_as(ClientError, f"clients failed in '{operation}'"):
            return getattr(self._worker, operation)(shared, *arguments)

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Answer at once, even while the actor computes."""


def prepare_process(search_path: list[str]) -> None:
    """Set up an actor's process so that it computes and imports modules as the driver does."""
    # A method or model written by the user is imported here by name too, from the folders where the driver finds it.
    sys.path.extend(p for p in search_path if p not in sys.path)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # for libraries that are loaded later, and for every thread
    threadpool_limits(1)
