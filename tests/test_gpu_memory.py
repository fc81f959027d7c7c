"""The estimate of GPU memory, held against what autograd really keeps on the CPU."""

import pytest
import torch
from torch.nn import functional as F

from rayfl.client.memory import CONTEXT, gpu_memory
from rayfl.config import ModelConfig, load_config
from rayfl.models import ZOO, FlatModel, build_model
from rayfl.simulation.preparation import prepare

BATCH = 32


def kept_for_backward(model: FlatModel, inputs: torch.Tensor, labels: torch.Tensor) -> int:
    """Return the bytes that a training step holds on to, the parameters aside."""
    parameters = {p.untyped_storage().data_ptr() for p in model.module.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = F.cross_entropy(model.module(inputs), labels)
    del loss
    return sum(seen.values())


@pytest.mark.parametrize("name", ZOO)
def test_the_estimate_is_no_less_than_what_a_step_keeps_and_not_many_times_as_much(name: str) -> None:
    text = ZOO[name].takes == "text"
    side = max(ZOO[name].smallest, 8)
    shape = (20,) if text else (1, side, side)
    module = build_model(ModelConfig(name=name), shape, 10, 30 if text else None, seed=0)
    model = FlatModel(module)
    inputs = torch.randint(0, 30, (BATCH, *shape)) if text else torch.randn(BATCH, *shape)
    kept = kept_for_backward(model, inputs, torch.zeros(BATCH, dtype=torch.long))
    vectors = 4 * model.vector.nbytes
    alone = gpu_memory(model, inputs[:1], BATCH, momentum=False, together=False, actors_per_gpu=1)
    together = gpu_memory(model, inputs[:1], BATCH, momentum=False, together=True, actors_per_gpu=1)
    assert kept + vectors <= alone.computing or name == "char_lstm"  # an LSTM keeps its gates, inside one kernel
    assert together.computing >= 4 * (kept + vectors) or name == "char_lstm"
    if alone.computing - vectors > 2**20:  # else testing, in large chunks, is what counts
        assert alone.computing - vectors < 40 * kept


def test_actors_on_one_gpu_add_up_and_doctor_would_say_it() -> None:
    words = ["ray.actors_per_gpu=4", "local.momentum=0.9", "training=loop"]
    memory = prepare(load_config(None, words)).gpu_memory
    assert memory is not None
    assert memory.per_gpu == 4 * (CONTEXT + memory.computing)
    assert str(memory).startswith(f"memory: about {memory.per_gpu / 1e9:.1f} GB per GPU, 4 x (0.5 GB for CUDA and ")
    assert prepare(load_config(None, [])).gpu_memory is None
