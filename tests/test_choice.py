"""Which trainer a run takes, and what guards the choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from rayfl.client import choice, layers
from rayfl.client.batches import batch_sizes, draw_batches
from rayfl.client.choice import vectorisable
from rayfl.client.task import Task
from rayfl.config import LocalConfig, load_config
from rayfl.launch import resume, simulate
from rayfl.models import FlatModel
from rayfl.results import Run, load
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

SMALL = ["federation=serial", "rounds=2", "local.steps=2", "method.name=fedavg", "partition.clients=6"]
SMALL += ["model.name=mlp"]  # trained together on any CPU


@given(
    counts=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    size=st.integers(1, 40),
    work=st.sampled_from([{"steps": 5}, {"epochs": 2}]),
)
@settings(max_examples=100, deadline=None)
def test_the_sizes_that_are_tried_are_those_that_clients_see(counts: list[int], size: int, work: dict) -> None:
    local = LocalConfig.model_validate({"batch_size": size, **work})
    seen = {len(b) for n in counts for b in draw_batches(np.random.default_rng(0), n, local)}
    assert batch_sizes(np.array(counts), local) == seen


def network() -> FlatModel:
    torch.manual_seed(0)
    return FlatModel(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 5))
    )


BATCH = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def second_block_rounds_otherwise(monkeypatch: pytest.MonkeyPatch, applies: Callable[..., bool]) -> None:
    """Make products depend on the place, as a library might: the second block's are off by a bit."""
    real = layers._product
    seen: list[int] = []

    def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> torch.Tensor:
        result = real(rows, weight, bias, block)
        if applies(rows) and len(rows) > block:
            seen.append(len(rows))
            factor = torch.ones(len(rows), 1, 1)
            factor[block:] += 2e-7
            return result * factor
        return result

    monkeypatch.setattr(layers, "_product", product)


def test_the_trial_finds_a_kernel_that_goes_by_the_place_in_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vectorisable(network(), BATCH) is None
    second_block_rounds_otherwise(monkeypatch, lambda rows: True)
    assert "depend on which clients are trained together" in str(vectorisable(network(), BATCH))


def test_the_trial_finds_one_that_does_so_only_for_models_that_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partners and the models of contrasts run without a gradient."""
    second_block_rounds_otherwise(monkeypatch, lambda rows: not torch.is_grad_enabled())
    assert "depend on which clients are trained together" in str(vectorisable(network(), BATCH))


@pytest.mark.parametrize(("shorter", "found"), [((), False), ((5,), False), ((4, 5), True)])
def test_the_trial_covers_the_shorter_batches_of_the_run(
    monkeypatch: pytest.MonkeyPatch, shorter: tuple[int, ...], found: bool
) -> None:
    """Batch norm sees short batches by themselves; here the second call with one of four is another than the first."""
    calls = []
    real = F.batch_norm

    def norm(maps: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if len(maps) != 4:
            return real(maps, *arguments)
        calls.append(1)
        return real(maps, *arguments) * (1 if len(calls) == 1 else 1.01)

    monkeypatch.setattr(layers.F, "batch_norm", norm)
    assert (vectorisable(network(), BATCH, shorter) is not None) == found
    assert bool(calls) == found


def test_a_run_tries_every_size_of_batch_that_its_clients_will_see(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, Any] = {}

    def note(model: FlatModel, inputs: torch.Tensor, shorter: set[int], task: Task) -> None:
        tried.update(full=len(inputs), shorter=shorter)

    monkeypatch.setattr(choice, "vectorisable", note)
    words = ["local.epochs=1", "local.batch_size=50", "partition.kind=dirichlet", "training=vectorised"]
    p = prepare(load_config(None, words))
    expected = batch_sizes(p.partition.n_train, p.config.local)
    assert tried["full"] == 50
    assert len(tried["shorter"]) > 2
    assert tried["shorter"] | {50} == expected | {50}


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_does_not_depend_on_the_seed(seed: int) -> None:
    """A network of 54 weights and batches of one sample, where sums agree by luck for some seeds and not for others."""
    words = ["model.options.channels=1", "local.batch_size=1", "partition.kind=iid", "partition.clients=6"]
    words += ["training=vectorised"]  # refused where the trial fails
    assert prepare(load_config(None, [*words, f"seed={seed}"])).config.training == "vectorised"


class Lines(Screen):
    """Keeps what is shown."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def on_another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cpu_capability", lambda: "NEON")


def test_the_cpu_is_recorded_and_another_one_keeps_the_choice_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"output.dir={tmp_path}", "output.checkpoint_every=1"]
    here = Lines()
    first = simulate(load_config(None, [*words, "name=first"]), here)
    assert first.config.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert here.warnings == []

    on_another_cpu(monkeypatch)
    monkeypatch.setattr(choice, "faster_together", lambda *_: pytest.fail("the choice was made again"))
    for again in (
        lambda screen: simulate(load_config(f"{first.path}/config.yaml", ["name=again"]), screen),
        lambda screen: resume(first.path, ["rounds=3"], screen),
    ):
        screen = Lines()
        run: Run = again(screen)
        assert run.config.training == first.config.training == "vectorised"
        assert load(run.path).config.cpu_capability == first.config.cpu_capability
        (warning,) = screen.warnings
        assert "NEON" in warning
        assert str(first.config.cpu_capability) in warning
        assert "last bits" in warning


def test_a_cluster_with_another_kind_of_cpu_is_warned_of(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's CPU is taken for another kind; the actors say what they really have."""
    on_another_cpu(monkeypatch)
    screen = Lines()
    words = [*SMALL, "federation=ray", "ray.actors=1", f"output.dir={tmp_path}"]
    run = simulate(load_config(None, words), screen)
    assert run.config.cpu_capability == "NEON"
    assert any(torch.backends.cpu.get_cpu_capability() in warning for warning in screen.warnings)
