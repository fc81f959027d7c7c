"""How much GPU memory training will take: an estimate, made before any GPU is used."""

from dataclasses import dataclass

import torch
from torch import nn

from rayfl.client.passes import CHUNK
from rayfl.client.vectorised import most_rows
from rayfl.models import FlatModel

#: GPU memory of a process before it computes anything: CUDA's context and the workspaces of libraries.
CONTEXT = 500 * 2**20


@dataclass(frozen=True)
class GpuMemory:
    """Bytes that one actor needs for training or testing, whichever is more; CONTEXT comes on top of it."""

    computing: int
    actors_per_gpu: int

    @property
    def per_gpu(self) -> int:
        """Bytes that all actors on one GPU need."""
        return self.actors_per_gpu * (CONTEXT + self.computing)

    def __str__(self) -> str:
        return (
            f"memory: about {self.per_gpu / 1e9:.1f} GB per GPU, {self.actors_per_gpu}"
            f" x ({CONTEXT / 1e9:.1f} GB for CUDA and {self.computing / 1e6:.0f} MB for training and testing)"
        )


def gpu_memory(
    model: FlatModel, sample: torch.Tensor, batch: int, momentum: bool, together: bool, actors_per_gpu: int
) -> GpuMemory:
    """Estimate the memory from the sizes of the network's feature maps; `sample` is a batch of one.

    Training holds every feature map of a batch with its gradient, and a few vectors per client; testing holds two maps
    of CHUNK samples. Workspaces of convolutions, which may be larger than the maps, are counted in CONTEXT.
    """
    with model.outside.fresh():
        sizes = _map_bytes(model.module, sample)
    clients = most_rows(model.module) if together else 1
    vectors = 4 + momentum  # weights, gradient, initial weights, proximal target
    training = clients * (2 * batch * sum(sizes) + vectors * model.vector.nbytes)
    testing = 2 * CHUNK * max(sizes, default=0) + 2 * model.vector.nbytes
    return GpuMemory(max(training, testing), actors_per_gpu)


def _map_bytes(module: nn.Module, sample: torch.Tensor) -> list[int]:
    """Return the bytes of each layer's output for one sample, and of the sample itself."""
    sizes = [sample.nbytes]

    def note(_: nn.Module, __: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output  # an LSTM returns its state too
        if isinstance(first, torch.Tensor):
            sizes.append(first.nbytes)

    hooks = [m.register_forward_hook(note) for m in module.modules() if not list(m.children())]
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(sample)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return sizes
