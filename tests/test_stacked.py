"""Several fixed models on one data set: the same as each model loaded and run by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rayfl.client import stacked
from rayfl.client.layers import PlainLayers
from rayfl.client.passes import CHUNK
from rayfl.client.stacked import ROWS, predictions, sample_losses, stacked_features, stacked_logits
from rayfl.config import ModelConfig
from rayfl.models import ZOO, FlatModel, build_model

CLASSES, VOCABULARY = 5, 11


def stacked_losses(*arguments: Any) -> torch.Tensor:
    """Mean losses per sample, as the federation gives them."""
    return sample_losses(*arguments).mean(1)


def make(name: str, models: int = 3, samples: int = 4) -> tuple[FlatModel, torch.Tensor, torch.Tensor]:
    """Return a network, a stack of different models of it with different batch norm statistics, and inputs."""
    architecture = ZOO[name]
    text = architecture.takes == "text"
    side = max(architecture.smallest, 8)
    shape = (6,) if text else (1, side, side)
    vocabulary = VOCABULARY if text else None
    options = {"width": 8} if name.startswith("resnet") else {}
    config = ModelConfig(name=name, options=options)
    model = FlatModel(build_model(config, shape, CLASSES, vocabulary, seed=1))
    generator = torch.Generator().manual_seed(2)
    stack = model.vector * (1 + 0.5 * torch.rand(models, model.layout.size, generator=generator))
    if text:
        return model, stack, torch.randint(0, VOCABULARY, (samples, *shape), generator=generator)
    return model, stack, torch.randn(samples, *shape, generator=generator)


def one_by_one(model: FlatModel, stack: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and logits of each model, loaded into the network."""
    before = model.copy()
    model.module.eval()
    both = []
    with torch.no_grad():
        for vector in stack:
            model.load(vector)
            both.append(model.features(inputs))
    model.module.train()
    model.load(before)
    return torch.stack([f.flatten(1) for f, _ in both]), torch.stack([logits for _, logits in both])


@pytest.mark.parametrize("name", ZOO)
def test_stacked_models_answer_as_each_does_alone(name: str) -> None:
    model, stack, inputs = make(name)
    before = model.copy()
    features, logits = one_by_one(model, stack, inputs)
    got = stacked_logits(model, stack, inputs)
    assert (got[0] - got[1]).abs().max() > 1e-4  # else the comparison would say nothing
    torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stacked_features(model, stack, inputs), features, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.vector, before)
    assert model.module.training
    assert not got.requires_grad


def of_other_layers() -> tuple[FlatModel, torch.Tensor, torch.Tensor]:
    """Return a dense network that is not plain, since Tanh is not known layer by layer."""
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    return model, model.vector * (1 + torch.rand(3, model.layout.size)), torch.randn(4, 6)


@pytest.mark.parametrize(
    ("make_one", "way"),
    [
        (lambda: make("mlp"), "plain"),
        (lambda: make("digits_cnn"), "plain"),
        (of_other_layers, "vmap"),
        (lambda: make("char_lstm"), "one by one"),
    ],
)
def test_one_pass_is_of_all_models_where_that_is_faster(
    make_one: Callable[[], Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All models are run in one call: layer by layer if the network is plain, by `vmap` if it is dense."""
    model, stack, inputs = make_one()
    calls = []
    run, vmap, called = PlainLayers.__call__, stacked.vmap, stacked.functional_call
    monkeypatch.setattr(PlainLayers, "__call__", lambda *a: calls.append("plain") or run(*a))
    monkeypatch.setattr(stacked, "vmap", lambda *a, **k: calls.append("vmap") or vmap(*a, **k))
    monkeypatch.setattr(stacked, "functional_call", lambda *a, **k: calls.append("call") or called(*a, **k))
    stacked_logits(model, stack, inputs)
    assert calls == {"plain": ["plain"], "vmap": ["vmap", "call"], "one by one": ["call"] * 3}[way]


@pytest.mark.parametrize("samples", [1, 3, 4, 7, 21])
@pytest.mark.parametrize("name", ["digits_cnn", "thesis_fashion_mnist"])
def test_a_single_model_answers_in_order_however_its_samples_are_folded(
    name: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "CHUNK", 8)
    model, stack, inputs = make(name, models=1, samples=samples)
    features, logits = one_by_one(model, stack, inputs)
    torch.testing.assert_close(stacked_logits(model, stack, inputs), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stacked_features(model, stack, inputs), features, rtol=1e-4, atol=1e-5)


def test_batch_norm_and_dropout_between_dense_layers_are_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(), nn.Linear(5, CLASSES)))
    stack = model.vector * (1 + torch.rand(4, model.layout.size))
    inputs = torch.randn(9, 6)
    torch.testing.assert_close(stacked_logits(model, stack, inputs), one_by_one(model, stack, inputs)[1])


@pytest.mark.parametrize("name", ["mlp", "digits_cnn"])
def test_more_models_and_samples_than_fit_one_pass_are_all_there_in_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "CHUNK", 8)
    monkeypatch.setattr(stacked, "_PART", 4)
    monkeypatch.setattr(stacked, "ROWS", 32)
    model, stack, inputs = make(name, models=9, samples=19)
    labels = torch.arange(19) % CLASSES
    logits = one_by_one(model, stack, inputs)[1]
    torch.testing.assert_close(stacked_logits(model, stack, inputs), logits)
    losses = stacked_losses(model, stack, inputs, labels)
    expected = torch.stack([cross_entropy(each.double(), labels) for each in logits])
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def test_a_pass_is_bounded() -> None:
    assert ROWS >= CHUNK
    for name, most in (("mlp", CHUNK), ("digits_cnn", stacked._PART)):
        model, _, _ = make(name)
        for samples in (1, 7, 300, 512, 100_000):
            assert stacked._models_at_once(model, samples) * min(samples, most) <= ROWS


@pytest.mark.parametrize("name", ["mlp", "digits_cnn"])
def test_losses_are_means_per_sample_in_float64_of_the_logits_added_to_the_partners(name: str) -> None:
    model, stack, inputs = make(name, samples=6)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    partner = torch.randn(6, CLASSES)
    logits = one_by_one(model, stack, inputs)[1].double()
    for added, losses in (
        (0, stacked_losses(model, stack, inputs, labels)),
        (partner, stacked_losses(model, stack, inputs, labels, partner)),
    ):
        by_hand = -(logits + added).log_softmax(2)[:, torch.arange(6), labels].mean(1)
        assert losses.dtype == torch.float64
        torch.testing.assert_close(losses, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "digits_cnn"])
def test_the_same_stack_and_data_give_the_same_bits_whatever_the_network_did_before(name: str) -> None:
    model, stack, inputs = make(name, models=5, samples=40)
    labels = torch.arange(40) % CLASSES
    first = stacked_losses(model, stack, inputs, labels)
    model.load(stack[3] + 1)
    model.module.eval()
    stacked_losses(model, stack[:2], inputs[:7], labels[:7])
    assert torch.equal(stacked_losses(model, stack, inputs, labels), first)
    assert not model.module.training


def test_the_loss_of_a_looped_model_does_not_depend_on_the_models_beside_it() -> None:
    model, stack, inputs = make("resnet9", models=5, samples=40)
    labels = torch.arange(40) % CLASSES
    alone = torch.cat([stacked_losses(model, vector[None], inputs, labels) for vector in stack])
    assert torch.equal(stacked_losses(model, stack, inputs, labels), alone)


def test_predictions_are_the_softmax_of_a_models_logits() -> None:
    model, stack, inputs = make("mlp")
    got = predictions(model, stack[1], inputs)
    torch.testing.assert_close(got, one_by_one(model, stack, inputs)[1][1].softmax(1))
    torch.testing.assert_close(got.sum(1), torch.ones(len(inputs)))


def test_a_module_with_two_names_keeps_its_weights_when_others_are_run_through_it() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.head = nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.second(self.first(inputs)))

    model = FlatModel(Twice())
    inputs = torch.randn(5, 4)
    before = model.module(inputs)
    other = model.copy() * 2
    found = stacked_logits(model, torch.stack([other, model.copy()]), inputs)
    assert torch.equal(found[1], before)
    assert torch.equal(model.module(inputs), before)
    assert isinstance(model.module.first.weight, nn.Parameter)  # else training would move nothing in it
    model.load(other)
    assert torch.allclose(found[0], model.module(inputs))
