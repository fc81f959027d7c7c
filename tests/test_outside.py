"""What networks keep outside their vector, and random numbers of their own: none of it goes from client to client."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tables import assert_same
from torch import nn

from rayfl.client.orders import EvaluateOrder, TrainOrder
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.errors import ClientError
from rayfl.launch import resume, simulate
from rayfl.models import FlatModel
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

#: By what it keeps: the lines of __init__, and those of forward, which end with a factor for the inputs.
KINDS = {
    "an integer buffer": ("self.register_buffer('n', torch.tensor(0))", "self.n += 1; by = self.n"),
    "a rebound integer buffer": ("self.register_buffer('n', torch.tensor(0))", "self.n = self.n + 1; by = self.n"),
    "a buffer that is not saved": (
        "self.register_buffer('n', torch.tensor(1.0), persistent=False)",
        "self.n *= 1.1; by = self.n",
    ),
    "a buffer that begins as None": (
        "self.register_buffer('n', None)",
        "self.n = x.mean().detach() if self.n is None else self.n * 1.1; by = self.n",
    ),
    "a rebound buffer of the vector": (
        "self.register_buffer('mean', torch.tensor(1.0))",
        "self.mean = 0.9 * self.mean + 0.1 * x.mean().detach() if self.training else self.mean; by = self.mean",
    ),
    "an average over all batches": (
        "self.norm = nn.BatchNorm1d(64, momentum=None)",
        "x = self.norm(x); by = 1",
    ),
    "a number": ("self.n = 0", "self.n += 1; by = self.n"),
    "an attribute made in forward": ("", "self.n = getattr(self, 'n', 0) + 1; by = self.n"),
    "a list": ("self.seen = []", "self.seen.append(float(x.mean())); by = 1 + sum(self.seen)"),
    "a list that two modules share": (
        "self.seen = []; self.other = Beside(self.seen)",
        "self.other(); by = 1 + len(self.seen)",
    ),
    "numpy's generator": ("", "by = np.random.rand()"),
    "Python's generator": ("", "by = random.random()"),
    "torch's generator in tests": ("", "by = torch.rand(())"),
    "a generator of its own, numpy": ("self.rng = np.random.default_rng(0)", "by = self.rng.random()"),
    "a generator of its own, torch": (
        "self.rng = torch.Generator().manual_seed(0)",
        "by = torch.rand((), generator=self.rng)",
    ),
    "weights drawn from numpy": ("self.head.weight.data *= float(np.random.rand())", "by = 1"),
}
CODE = """
import random
import numpy as np
import torch
from torch import nn

class Beside(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self):
        self.seen.append(1)

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)
        INIT

    def forward(self, x):
        x = x.flatten(1)
        FORWARD
        return self.head(x * (0.1 * by))
"""


@pytest.fixture
def network(own_code: Callable[[str, str], None]) -> Callable[[str], str]:
    def write(kind: str) -> str:
        init, forward = KINDS[kind]
        module = "keeps_" + "".join(filter(str.isalnum, kind))
        own_code(module, CODE.replace("INIT", init).replace("FORWARD", forward))
        return f"model.name={module}:Net"

    return write


def worker(*words: str) -> Worker:
    prepared = prepare(load_config(None, ["federation=serial", "partition.clients=6", "local.steps=3", *words]))
    return Worker(prepared.config, prepared.dataset, prepared.partition)


def trained_and_tested(at: Worker, clients: list[int]) -> dict[int, tuple[bytes, bytes]]:
    at.train([], TrainOrder(1, np.array(clients), keep=True))
    found = {}
    for client in clients:
        _, scores = at.evaluate([None], EvaluateOrder([(("model",), np.array([client]))], "logits", ("all",)))
        found[client] = (at.states.get("model", client).tobytes(), scores.tobytes())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_has_the_same_result_whoever_was_trained_before_it(kind: str, network: Callable[[str], str]) -> None:
    words = [network(kind), "training=loop"]
    random.seed()  # what this process has drawn so far must not matter
    np.random.seed()
    alone = trained_and_tested(worker(*words), [3, 4])
    in_company = trained_and_tested(worker(*words), [0, 4, 5, 3])
    assert {client: in_company[client] for client in alone} == alone
    again = worker(*words)
    trained_and_tested(again, [0, 1])
    assert trained_and_tested(again, [3, 4]) == alone


@pytest.mark.parametrize("kind", ["an integer buffer", "a number", "a list", "numpy's generator", "Python's generator"])
def test_training_together_is_refused_or_the_same(kind: str, network: Callable[[str], str]) -> None:
    """`auto` takes the loop."""
    config = load_config(None, [network(kind), "federation=serial"])
    assert prepare(config).config.training == "loop"


def test_a_test_in_the_middle_of_a_training_leaves_no_trace() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.calls: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.append(len(x))
            return self.head(x) + np.random.rand()

    model = FlatModel(Counting())
    model.module(torch.zeros(3, 2))
    state = np.random.get_state()[1].tobytes()
    with model.outside.fresh():
        assert model.module.calls == []
        one = model.module(torch.zeros(4, 2))
    with model.outside.fresh():
        assert torch.equal(model.module(torch.zeros(4, 2)), one)
    assert model.module.calls == [3]
    assert np.random.get_state()[1].tobytes() == state
    assert model.outside.changed() == ["calls"]


def test_the_generators_of_the_users_process_are_left_as_they_were(network: Callable[[str], str]) -> None:
    words = [network("numpy's generator"), "training=loop"]
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    trained_and_tested(worker(*words), [0, 1])
    assert (random.random(), np.random.rand()) == expected


def test_a_rebound_buffer_is_carried_to_the_next_round(network: Callable[[str], str]) -> None:
    at = worker(network("a rebound buffer of the vector"), "training=loop")
    trained_and_tested(at, [0])
    once = at.states.get("model", 0).copy()
    trained_and_tested(at, [0])
    assert not np.array_equal(once[-1:], at.initial[-1:])
    assert not np.array_equal(once[-1:], at.states.get("model", 0)[-1:])


def test_new_tensors_in_the_place_of_parameters_are_refused(own_code: Callable[[str, str], None]) -> None:
    forward = "self.head.weight.data = self.head.weight.data.clamp(-1, 1); by = 1"
    own_code("rebinding", CODE.replace("INIT", "").replace("FORWARD", forward))
    with pytest.raises(ClientError, match=r"a new tensor in the place of its parameter head\.weight"):
        trained_and_tested(worker("model.name=rebinding:Net", "training=loop"), [0])


def test_two_actors_and_a_resumed_run_agree_with_one_process(
    ray_session: None, tmp_path: Path, own_code: Callable[[str, str], None], network: Callable[[str], str]
) -> None:
    """All kinds in one network, and CAM, which tests another model in the middle of each training."""
    names = [network(kind).removeprefix("model.name=").removesuffix(":Net") for kind in KINDS]
    own_code(
        "keeps_all",
        f"""
from torch import nn
import {", ".join(names)}

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.each = nn.ModuleList(module.Net(classes) for module in ({", ".join(names)}))

    def forward(self, x):
        return sum(each(x) for each in self.each)
""",
    )
    common = ["model.name=keeps_all:Net", "method.name=fesem", "method.clusters=2", "method.addons=[cam]"]
    common += ["method.cam.warmup=0", "partition.clients=6", "local.steps=2", f"output.dir={tmp_path}"]

    def run(name: str, *words: str) -> Run:
        return simulate(load_config(None, [*common, "rounds=4", f"name={name}", *words]), Screen(quiet=True))

    serial = run("serial", "federation=serial")
    assert serial.rounds["accuracy"].nunique() > 1
    assert_same(serial, run("actors", "ray.actors=2", "ray.cpus_per_actor=0.5"))
    run("begun", "federation=serial", "rounds=2", "output.checkpoint_every=1")
    assert_same(serial, resume(tmp_path / "begun", ["rounds=4", "model.name=keeps_all:Net"], Screen(quiet=True)))
