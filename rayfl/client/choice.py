"""Which trainer a run takes: what can be trained together at all, and what is faster so.

Both are settled before the first round, by the network, the batches, the kind of device and the CPU's capability. A
clock, or how many clients a worker happens to have, would give the same run other bits on another day.
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
from rayfl.client.trainee import Trainee
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
    """Tell whether training together is faster than the loop; see the module on what this may depend."""
    kinds = {type(m) for m in model.module.modules()}
    if device.startswith("cuda"):
        # Not measured: below this size a step is a matter of starting kernels, and we start one where the loop starts
        # several. Torch's own LSTM is one kernel, ours hundreds.
        return model.layout.parameters <= 1_000_000 and not any(issubclass(kind, nn.RNNBase) for kind in kinds)
    # Beyond these sizes the weights of several clients no longer fit the caches. The loop's time over ours by number of
    # parameters, AVX2 / AVX-512 at batch 10: dense 25,000 1.5 / 1.5, 50,000 1.0 / 1.1, 75,000 1.0 / 0.9; convolutional,
    # over the better order in memory, 46,000 1.2 / 1.4, 80,000 1.1 / 1.0, 175,000 0.9 / 0.9 (`trainers --only hidden
    # channels`).
    if kinds <= DENSE:
        return model.layout.parameters <= 50_000 and batch_size <= 128
    # Convolutions in groups are a matter of a library's kernels: on other CPUs nobody has measured them.
    return is_plain(model.module) and model.layout.parameters <= 100_000 and capability in ("AVX2", "AVX512")


def try_together(
    model: FlatModel, dataset: Dataset, n_train: np.ndarray, local: LocalConfig, task: Task = CLASSIFICATION
) -> str | None:
    """Say why the clients of a run cannot be trained together on the model's device; None if they can.

    Every size of batch that clients with `n_train` samples will see is tried.
    """
    full = largest_batch(n_train, local)
    inputs, _ = dataset.batch(np.arange(full) % len(dataset))
    shorter = batch_sizes(n_train, local) - {full}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as actors compute
    try:
        return vectorisable(model, inputs.to(model.vector.device), shorter, task)
    finally:
        torch.set_num_threads(threads)


def vectorisable(
    model: FlatModel, inputs: torch.Tensor, shorter: Collection[int] = (), task: Task = CLASSIFICATION
) -> str | None:
    """Say why this network cannot be trained together as the loop would train it; None if it can.

    A step is tried on the device that `inputs` are on: with them, a full batch, and with the first of them as `shorter`
    batches. So whatever the network does shows here and not in the results: `vmap` may not follow it, or it may draw
    random numbers of its own. It also shows if a library treats a client by its place in a group.
    """
    if any(model.layout.channels_last):
        return "its weights lie with the channels last, which only the loop can follow"
    before = model.copy()
    # Numbers without a pattern, so that two orders of summing hardly agree by luck, whatever the run's seed.
    generator = torch.Generator().manual_seed(0)
    start = _varied(model.vector, generator)
    inputs = _varied(inputs, generator) if inputs.is_floating_point() else inputs
    kind = torch.long if task.targets == "class" else torch.float32
    labels = torch.zeros(len(inputs), dtype=kind, device=inputs.device)
    trainee = Trainee(start, [(inputs, labels)], seed=0)
    # A step so long that the weights after it have the gradient's last bits.
    local, lr = LocalConfig(steps=1, batch_size=len(inputs)), 1024.0
    try:
        group = Group(model, [trainee] * (GROUP - 1), local, lr, task)
        together, *others = group.train()
        same = _all_equal([together, *others, *train_together(model, [trainee], local, lr, task)])
        for variant in _variants(model, trainee, generator, shorter):
            try:
                few, alone = (
                    train_together(model, [variant] * count, local, lr, task) for count in (GROUP // 2 + 1, 1)
                )
            except InputError:
                continue  # it has no features before its head, as the loop would say too if anyone asked for them
            same = same and _all_equal(few + alone)
    except Exception as error:
        return f"vmap cannot follow it: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if changed := _changed_in_training(model, inputs):
        return f"training changes its {', '.join(changed)}, which only the loop can keep apart for each client"
    if not same:
        return "it does not give the same bits in all places and companies, or draws random numbers of its own"
    if group.drew and inputs.device.type != "cpu":
        return None  # a GPU's dropout draws in one kernel, other numbers than ours
    with global_generators_kept([inputs.device] if inputs.device.type == "cuda" else []):
        by_the_loop = loop.train_alone(model, trainee, local, lr, task).clone()
    model.outside.reset()
    model.load(before)
    for part in (model.layout.part("all"), model.layout.buffers):
        close = (together - by_the_loop)[part].norm() <= 1e-3 * (by_the_loop - start)[part].norm()
        if not close:
            return "a step together is not that of the loop; it may draw random numbers in a way of its own"
    return None


def _changed_in_training(model: FlatModel, inputs: torch.Tensor) -> list[str]:
    """Return what a forward pass changes of the network outside its vector."""
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
    model: FlatModel, trainee: Trainee, generator: torch.Generator, shorter: Collection[int]
) -> list[Trainee]:
    """Return what may be asked of a trainee besides: a partner, contrasts, batches that are not full."""
    others = torch.stack([_varied(trainee.start, generator) for _ in range(2)])
    (inputs, labels), *_ = trainee.batches
    return [
        replace(trainee, partner=Partner(others[0])),
        replace(trainee, terms=[Bound(ParameterContrast(None, 1.0, 1.0), others, 1, "head")]),
        replace(trainee, terms=[Bound(FeatureContrast(None, 1.0, 1.0), others, 0)]),
        *(replace(trainee, batches=[(inputs[:size], labels[:size])]) for size in sorted(shorter)),
    ]


def _varied(numbers: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return numbers * (1 + 0.5 * torch.rand(numbers.shape, generator=generator)).to(numbers)


def _all_equal(vectors: list[torch.Tensor]) -> bool:
    return all(torch.equal(vector, vectors[0]) for vector in vectors)
