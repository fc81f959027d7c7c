"""Devices that are not the CPU: transfers are rehearsed on one without memory, GPU actors ask for determinism."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rayfl.client import vectorised
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.federation.serial import SerialFederation
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

aten = torch.ops.aten


class Rehearsal(TorchDispatchMode):
    """Lets torch compute on `meta`, whose tensors have no memory, under the rules that hold for GPUs.

    Tensors of two devices never meet in one operation, but for single numbers of the CPU. What is brought back to the
    CPU is zeros.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on = {t.device.type for t in tensors if t.device.type == "meta" or t.dim() > 0}
        if (
            func is aten._to_copy.default
            and on == {"meta"}
            and torch.device(kwargs.get("device", "meta")).type == "cpu"
        ):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default:
            return args[0].zero_() if args[0].device.type == "cpu" and "meta" in on else func(*args, **kwargs)
        if func is aten.equal.default and on == {"meta"}:
            return True
        if on == {"meta", "cpu"}:
            raise AssertionError(f"{func} was given tensors of two devices")
        return func(*args, **kwargs)


@pytest.fixture
def no_generators_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` has no random numbers, so those of the CPU stand in; who draws from them is tested elsewhere."""
    monkeypatch.setattr(vectorised, "_generator", lambda _, seed: torch.Generator().manual_seed(seed))


def rounds_elsewhere(*overrides: str) -> Iterator[Any]:
    """Run rounds with a worker on another device than the CPU."""
    small = ["data.limit=480", "partition.clients=6", "local.steps=2", "federation=serial", "rounds=3"]
    p = prepare(load_config(None, [*small, *overrides]))
    with Rehearsal():
        worker = Worker(p.config, p.dataset, p.partition, device="meta")
        assert worker.model.vector.device.type == "meta"
        fed = SerialFederation(p.facts, worker)
        try:
            server = Server(p.config, fed, p.partition.true_cluster)
            for number in range(1, p.config.rounds + 1):
                yield server.run_round(number)
        finally:
            fed.close()


METHODS = {
    "fedavg": [],
    "ifca": ["method.addons=[cam]", "method.cam.warmup=1"],
    "wecfl": ["method.addons=[con_cks]", "method.finetune=true"],
    "fedac": ["method.tuning=none"],
    "fedtsdp": ["method.public_batch=20"],
    "fedsoft": [],
    "ditto": [],
}


@pytest.mark.parametrize("training", ["loop", "vectorised"])
@pytest.mark.parametrize("method", METHODS)
def test_a_round_leaves_no_tensor_behind_on_the_way_to_another_device(
    method: str, training: str, no_generators_elsewhere: None
) -> None:
    records = list(rounds_elsewhere(f"method.name={method}", f"training={training}", *METHODS[method]))
    assert len(records) == 3
    assert all(np.isfinite(record.summary["accuracy"]) for record in records)


@pytest.mark.parametrize("training", ["loop", "vectorised"])
@pytest.mark.parametrize("model", ["mlp", "fedtsdp_cnn", "thesis_fashion_mnist"])
def test_every_kind_of_layer_follows_to_another_device(
    model: str, training: str, no_generators_elsewhere: None
) -> None:
    momentum = ["local.momentum=0.9", "local.weight_decay=0.1", "local.epochs=1", "local.batch_size=25"]
    assert list(rounds_elsewhere("method.name=fedprox", f"model.name={model}", f"training={training}", *momentum))


def test_a_forgotten_transfer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would say nothing."""
    monkeypatch.setattr(Worker, "samples", lambda self, client, indices, _: self.dataset.batch(indices))
    with pytest.raises(Exception, match="two devices"):
        list(rounds_elsewhere("method.name=fedavg", "training=loop"))


def flags() -> dict[str, Any]:
    import os

    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


@pytest.mark.parametrize("share", ["ray.gpus_per_actor=0.5", "ray.gpus_per_actor=0"])
def test_actors_with_a_share_of_a_gpu_ask_for_deterministic_kernels(own_actors: None, share: str) -> None:
    import ray

    from rayfl.actors.supervisor import ray_server

    p = prepare(load_config(None, ["method.name=fedavg", "partition.clients=4", "ray.actors=1", share]))
    with ray_server(p.config, lambda: p) as server:
        found = ray.get(server._clients[0].actor.__ray_call__.remote(lambda _: flags()), timeout=60)
    assert found["algorithms"] == found["warn only"] == found["cudnn"] == (share != "ray.gpus_per_actor=0")
    if found["algorithms"]:
        assert (found["benchmark"], found["tf32"], found["cublas"]) == (False, False, ":4096:8")


UNFIT = """
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x if x.sum() > 0 else -x)
"""


def test_on_gpus_the_actors_try_the_vectorised_trainer_and_auto_takes_the_loop_if_it_fails(
    own_actors: None,
    simulate_quietly: Callable[..., Run],
    own_code: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small networks are trained together on GPUs; this one cannot be, which only an actor finds out."""
    import rayfl.client.choice as choice

    def driver_must_not_try(*_: Any) -> None:
        raise AssertionError("the driver tried it")

    monkeypatch.setattr(choice, "try_together", driver_must_not_try)
    own_code("unfit", UNFIT)
    words = ["model.name=unfit:Net", "partition.clients=4", "rounds=2", "local.steps=2", "method.name=fedavg"]
    words += ["ray.actors=2", "ray.gpus_per_actor=0.5"]
    run = simulate_quietly(*words)
    assert run.config.training == "loop"
    assert len(run.rounds) == 2
    with pytest.raises(InputError, match=r"training=vectorised does not work with model\.name=unfit:Net.*control flow"):
        simulate_quietly(*words, "training=vectorised", "name=refused")
