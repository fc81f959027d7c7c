"""Models, methods, tasks and partitions as Python objects: classes defined inside a test, which cannot be imported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rayfl
from rayfl.client.task import Classification
from rayfl.data import Dataset, PartitionKind
from rayfl.errors import InputError, RayflError
from rayfl.federation import everyone
from rayfl.methods.options import MethodOptions
from rayfl.object_names import is_object_name, object_of

KEYS: dict[str, Any] = {
    "federation": "serial",
    "rounds": 2,
    "local": {"steps": 2},
    "partition": {"clients": 4, "kind": "iid"},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg"},
    "data": {"limit": 200},
    "quiet": True,
}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return lambda **keys: rayfl.run(output={"dir": str(tmp_path)}, **{**KEYS, **keys})


def small_net() -> type[nn.Module]:
    class SmallNet(nn.Module):
        def __init__(self, classes: int, width: int = 8) -> None:
            super().__init__()
            self.body = nn.Linear(64, width)
            self.head = nn.Linear(width, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x.flatten(1)).relu())

    return SmallNet


def median_method() -> type[rayfl.Method]:
    class Options(MethodOptions):
        scale: float = 1.0

    class Median(rayfl.Method):
        """FedAvg with the coordinate-wise median."""

        def start(self) -> None:
            self.state = self.fed.initial

        def round(self, cohort: np.ndarray) -> None:
            self.fed.train(cohort, start=self.eval_models())
            model = self.state.copy()
            model[: self.fed.layout.parameters] = self.options.scale * np.median(self.fed.collect(cohort), axis=0)
            self.state = model

        def eval_models(self) -> Any:
            return everyone(self.state, self.fed.clients)

    Median.Options = Options
    return Median


def weighted_task() -> Any:
    class Weighted(Classification):
        def __init__(self, weight: float) -> None:
            self.weight = weight

        def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self.weight * super().loss(outputs, labels)

    return Weighted


def numbers(found: Any) -> list[Any]:
    return found.clients[["round", "client", "accuracy", "loss"]].to_numpy().tolist()


def test_a_class_serves_as_the_model_with_its_options(run: Any) -> None:
    net = small_net()
    found = run(model={"name": net, "options": {"width": 5}})
    assert found.config.model.name == "python:SmallNet"
    assert found.model(client=0).networks[0].body.out_features == 5
    assert run(model=net).model(client=0).networks[0].body.out_features == 8
    assert run(**{"model": {}, "model.name": net}).config.model.name == "python:SmallNet"


@pytest.mark.parametrize("method", ["fedac", "fedper"])
def test_a_network_of_one_layer_has_no_backbone_to_share(run: Any, method: str) -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.only(x.flatten(1))

    def accuracies(method: str) -> list[float]:
        found = run(model=Linear, method={"name": method}, partition={"clients": 4, "kind": "dirichlet"})
        return found.clients["accuracy"].tolist()

    assert accuracies(method) == accuracies("local"), "everything is the clients' own"


def test_an_error_says_how_to_resume_a_run_with_objects(run: Any) -> None:
    class Broken(small_net()):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and len(x) == 32:
                raise RuntimeError("a screw is loose")
            return super().forward(x)

    with pytest.raises(RayflError, match=r"rayfl\.resume\('.*', model=\.\.\.\), in Python$"):
        run(model=Broken, training="loop", local={"steps": 1})


def test_a_network_is_trained_from_the_weights_that_it_has(run: Any) -> None:
    torch.manual_seed(5)
    net = small_net()(10)
    before = [p.detach().clone() for p in net.parameters()]
    still = run(model=net, local={"steps": 1, "lr": 1e-12}, rounds=1)
    saved = list(still.model().networks[0].parameters())
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(before, saved, strict=True))
    moved = run(model=net, rounds=1)
    assert not torch.allclose(next(moved.model().networks[0].parameters()), before[0])
    assert all(
        torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)
    )  # the caller's own is untouched


def test_a_method_with_several_models_draws_the_others_by_the_seed(run: Any) -> None:
    keys = {"method": {"name": "ifca", "clusters": 2}, "rounds": 1}
    net = small_net()(10)
    first, again, other = (run(model=net, seed=seed, **keys) for seed in (0, 0, 1))
    assert numbers(first) == numbers(again) != numbers(other)

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1) * self.weight)

    with pytest.raises(InputError, match=r"the layer Bare has no reset_parameters\(\)"):
        run(model=Bare(), **keys)


def test_options_of_a_network_that_is_built_are_refused(run: Any) -> None:
    with pytest.raises(InputError, match="python:SmallNet is a network, which is built already"):
        run(model={"name": small_net()(10), "options": {"width": 3}})


def test_a_function_builds_the_model(run: Any) -> None:
    found = run(model=lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))
    assert found.config.model.name == "python:lambda" and found.rounds.accuracy.iloc[-1] > 0.05


def test_a_class_serves_as_the_method_with_its_options(run: Any) -> None:
    method = median_method()
    found = run(method=method)
    assert found.config.method.name == "python:Median" and found.config.method.options["scale"] == 1.0
    assert Path(found.path).name.startswith("digits-Median-seed0")
    zero = run(method={"name": method, "scale": 0.0})
    assert zero.clients.loss.round(4).unique().tolist() == [pytest.approx(np.log(10), abs=1e-3)]
    with pytest.raises(InputError, match=r"method.scal=2: there is no key 'scal' \(did you mean 'scale'"):
        run(method={"name": method, "scal": 2})


def test_a_task_is_used_as_the_object_that_it_is(run: Any) -> None:
    task = weighted_task()
    plain, double = run(task=task(1.0)), run(task=task(2.0), local={"steps": 2, "lr": 0.025})
    assert plain.config.task == "python:Weighted"
    assert double.clients.loss.to_numpy() == pytest.approx(2 * plain.clients.loss.to_numpy(), rel=1e-4)
    with pytest.raises(InputError, match="task=python:Weighted takes arguments: pass an object of it"):
        run(task=task)


def test_a_partition_may_be_a_class_that_nobody_can_import(run: Any) -> None:
    class ByTurns(PartitionKind):
        def assign(self, dataset: Dataset, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return np.arange(len(pool)) % 5

    assert run(partition=ByTurns).clients.client.nunique() == 5
    assert run(partition=ByTurns(test=0.5)).config.partition.kind == "python:ByTurns"


def test_a_resume_asks_for_the_objects_and_goes_on_to_the_same_numbers(run: Any, tmp_path: Path) -> None:
    given = {"model": small_net(), "method": median_method(), "task": weighted_task()(2.0)}
    whole = run(**given, rounds=3)
    part = run(**given, rounds=2)
    with pytest.raises(InputError, match=r"method.name=python:Median stands for a Python object.* method=\.\.\."):
        rayfl.resume(part.path, rounds=3, quiet=True)
    without = {key: value for key, value in given.items() if key != "model"}
    with pytest.raises(InputError, match=r"model.name=python:SmallNet stands for a Python object.* model=\.\.\."):
        rayfl.resume(part.path, rounds=3, quiet=True, **without)
    assert numbers(rayfl.resume(part.path, rounds=3, quiet=True, **given)) == numbers(whole)


def test_a_loaded_run_gives_its_models_when_the_class_is_passed_again(run: Any) -> None:
    net = small_net()
    found = run(model=net)
    loaded = rayfl.load(found.path)
    with pytest.raises(InputError, match=r"was given a Python object as its model, python:SmallNet: pass it again"):
        loaded.model()
    samples = np.zeros((3, 1, 8, 8), np.uint8)
    assert torch.equal(loaded.model(model=net)(samples), found.model()(samples))


def test_objects_are_let_go_after_the_run(run: Any) -> None:
    name = run(method=median_method()).config.method.name
    assert is_object_name(name)
    with pytest.raises(InputError, match="was not given"):
        object_of("method.name", name)


def test_what_is_no_method_is_refused(run: Any) -> None:
    with pytest.raises(InputError, match=r"method.name=python:SmallNet is not a subclass of rayfl.Method"):
        run(method=small_net())


def test_both_federations_give_the_same_bits_with_objects(ray_session: None, run: Any) -> None:
    given = {"model": small_net(), "method": median_method(), "task": weighted_task()(2.0)}
    serial, on_ray = (run(**given, federation=kind, ray={"actors": 2}) for kind in ("serial", "ray"))
    assert numbers(serial) == numbers(on_ray)


def test_a_method_can_read_how_clients_train_their_labels_and_a_gradient(run: Any) -> None:
    seen: list[tuple[Any, ...]] = []

    class Curious(median_method()):  # type: ignore[misc]
        def round(self, cohort: np.ndarray) -> None:
            super().round(cohort)
            fed = self.fed
            told = fed.map(cohort, lambda client: np.array([client.local.steps, client.local.batch_size, client.lr]))
            assert np.allclose(told, [[fed.local.steps, fed.local.batch_size, fed.lr]] * len(cohort))
            labels = fed.map(cohort, lambda client: client.label_counts())
            gradients = fed.map(cohort, lambda client, model: client.gradient(model), self.state)
            assert gradients.shape == (len(cohort), fed.layout.parameters) and np.abs(gradients).max() > 0
            seen.append((fed.round, fed.local.steps, fed.lr, (labels.sum(1) == fed.n_train[cohort]).all()))

    run(method=Curious, local={"steps": 3, "lr": 0.1, "lr_decay": 0.5})
    assert seen == [(1, 3, 0.1, True), (2, 3, 0.05, True)]
