"""Which trainer a run uses: whether its clients can be trained together (vectorised), and whether that is faster.

Both are decided before the first round, from the network, the batches, the type of device and the CPU's capability. If
the choice depended on measured times, or on how many clients a worker has, the same run could give different bits on
another day.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from rayfl.client import loop
from rayfl.client.batches import batch_sizes, largest_batch
from rayfl.client.bound import Bound, Partner
from rayfl.client.layer_types import DENSE
from rayfl.client.layers import is_plain
from rayfl.client.objective import FeatureContrast, ParameterContrast
from rayfl.client.task import CLASSIFICATION, Task
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import GROUP, Group, train_together
from rayfl.config import LocalConfig
from rayfl.data import Dataset
from rayfl.errors import InputError
from rayfl.models import FlatModel
from rayfl.randomness import global_generators_kept


def cpu_capability() -> str:
    """Return the instructions that torch computes with on this machine's CPU, such as AVX2 or AVX512."""
    return torch.backends.cpu.get_cpu_capability()


def faster_together(model: FlatModel, batch_size: int, device: str, capability: str) -> bool:
    """Return whether training together is faster than the loop; the module docstring says what this may depend on."""
    kinds = {type(m) for m in model.module.modules()}
    if device.startswith("cuda"):
        # Not measured. Below this size, the time of a step is mostly that of launching kernels, and we launch one where
        # the loop launches several. But torch's LSTM is a single kernel, and ours is hundreds.
        return model.layout.parameters <= 1_000_000 and not any(issubclass(kind, nn.RNNBase) for kind in kinds)
    # Beyond these sizes, the weights of several clients no longer fit the caches. Measured speed-up over the loop by
    # number of parameters, AVX2 / AVX-512 at batch 10: dense networks 25,000: 1.5 / 1.5, 50,000: 1.0 / 1.1, 75,000:
    # 1.0 / 0.9; convolutional networks, against the loop with the faster memory layout, 46,000: 1.2 / 1.4, 80,000:
    # 1.1 / 1.0, 175,000: 0.9 / 0.9 (`benchmarks/trainers.py --only hidden channels`).
    if kinds <= DENSE:
        return model.layout.parameters <= 50_000 and batch_size <= 128
    # The speed of grouped convolutions depends on the library's kernels; on other CPUs it has not been measured.
    return is_plain(model.module) and model.layout.parameters <= 100_000 and capability in ("AVX2", "AVX512")


def try_together(
    model: FlatModel, dataset: Dataset, n_train: np.ndarray, local: LocalConfig, task: Task = CLASSIFICATION
) -> str | None:
    """Return why the clients of a run cannot be trained together on the model's device; None if they can.

    Every batch size that clients with `n_train` samples will see is tried.
    """
    full = largest_batch(n_train, local)
    inputs, _ = dataset.batch(np.arange(full) % len(dataset))
    shorter = batch_sizes(n_train, local) - {full}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # actors compute with one thread too
    try:
        return vectorisable(model, inputs.to(model.vector.device), shorter, task)
    finally:
        torch.set_num_threads(threads)


def vectorisable(
    model: FlatModel, inputs: torch.Tensor, shorter: Collection[int] = (), task: Task = CLASSIFICATION
) -> str | None:
    """Return why training this network for several clients at once would not give the loop's results; None if it would.

    A step is tried on the device of `inputs`: with all of them as a full batch, and with the first few as `shorter`
    batches. So problems show up here and not in the results: `vmap` may not support the network, the network may draw
    its own random numbers, or a library's result for a client may depend on the client's place in the group.
    """
    if any(model.layout.channels_last):
        return "its weights are stored with the channels last, which only the loop trainer supports"
    before = model.copy()
    # Values without a pattern, so that two orders of summation are unlikely to agree by chance, whatever the seed.
    generator = torch.Generator().manual_seed(0)
    start = _varied(model.vector, generator)
    inputs = _varied(inputs, generator) if inputs.is_floating_point() else inputs
    kind = torch.long if task.targets == "class" else torch.float32
    labels = torch.zeros(len(inputs), dtype=kind, device=inputs.device)
    job = TrainingJob(start, [(inputs, labels)], seed=0)
    # The step is so long that the last bits of the gradient are visible in the weights after it.
    local, lr = LocalConfig(steps=1, batch_size=len(inputs)), 1024.0
    try:
        group = Group(model, [job] * (GROUP - 1), local, lr, task)
        together, *others = group.train()
        same = _all_equal([together, *others, *train_together(model, [job], local, lr, task)])
        for variant in _variants(model, job, generator, shorter):
            try:
                few, alone = (
                    train_together(model, [variant] * count, local, lr, task) for count in (GROUP // 2 + 1, 1)
                )
            except InputError:
                continue  # the network has no features before its head; the loop would refuse this variant too
            same = same and _all_equal(few + alone)
    except Exception as error:
        return f"vmap cannot run it: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if changed := _changed_in_training(model, inputs):
        return f"training changes its {', '.join(changed)}, which only the loop can keep apart for each client"
    if not same:
        return "its results depend on which clients are trained together, or it draws its own random numbers"
    if group.drew and inputs.device.type != "cpu":
        return None  # on a GPU, torch's dropout draws other numbers than ours, so the two cannot be compared
    with global_generators_kept([inputs.device] if inputs.device.type == "cuda" else []):
        by_the_loop = loop.train_alone(model, job, local, lr, task).clone()
    model.outside.reset()
    model.load(before)
    for part in (model.layout.part("all"), model.layout.buffers):
        close = (together - by_the_loop)[part].norm() <= 1e-3 * (by_the_loop - start)[part].norm()
        if not close:
            return "a vectorised step differs from that of the loop; the network may draw its own random numbers"
    return None


def _changed_in_training(model: FlatModel, inputs: torch.Tensor) -> list[str]:
    """Return the names of everything outside the flat vector that a forward pass of the network changes."""
    before = model.copy()
    model.outside.reset()
    model.module.train()
    with torch.no_grad(), global_generators_kept([inputs.device] if inputs.device.type == "cuda" else []):
        model.module(inputs)
    changed = model.outside.changed()
    model.outside.reset()
    model.load(before)
    return changed


def _variants(
    model: FlatModel, job: TrainingJob, generator: torch.Generator, shorter: Collection[int]
) -> list[TrainingJob]:
    """Return variants of the job that methods may use: with a partner, contrastive terms, or smaller batches."""
    others = torch.stack([_varied(job.start, generator) for _ in range(2)])
    (inputs, labels), *_ = job.batches
    return [
        replace(job, partner=Partner(others[0])),
        replace(job, terms=[Bound(ParameterContrast(None, 1.0, 1.0), others, 1, "head")]),
        replace(job, terms=[Bound(FeatureContrast(None, 1.0, 1.0), others, 0)]),
        *(replace(job, batches=[(inputs[:size], labels[:size])]) for size in sorted(shorter)),
    ]


def _varied(numbers: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return numbers * (1 + 0.5 * torch.rand(numbers.shape, generator=generator)).to(numbers)


def _all_equal(vectors: list[torch.Tensor]) -> bool:
    return all(torch.equal(vector, vectors[0]) for vector in vectors)
