"""Convolution, ReLU and pooling at once: what the three layers give, forwards and backwards, also where places tie."""

import copy

import pytest
import torch
from torch import nn

from rayfl.config import ModelConfig
from rayfl.models import ZOO, FlatModel, build_model
from rayfl.models.pooled import pool_at_once

Gradients = dict[str, torch.Tensor]


def network(padding: int | tuple[int, int] = 0, kernel: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 6, kernel, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return body.append(nn.LazyLinear(5)).double()


def run(module: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, Gradients]:
    """Return the outputs, and the gradients of some function of them, that of the inputs included."""
    inputs = inputs.clone().requires_grad_()
    outputs = module(inputs)
    module.zero_grad()
    (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert inputs.grad is not None
    return outputs.detach(), {**gradients, "inputs": inputs.grad}


def both(module: nn.Module, inputs: torch.Tensor) -> list[tuple[torch.Tensor, Gradients]]:
    module(inputs)  # settles the lazy layer
    pooled = copy.deepcopy(module)
    assert pool_at_once(pooled)
    assert [name for name, _ in pooled.named_parameters()] == [name for name, _ in module.named_parameters()]
    return [run(module, inputs), run(pooled, inputs)]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("side", "padding", "kernel"), [(16, 0, 5), (17, 0, 5), (16, (1, 2), 3), (19, 2, 5), (16, 0, 4)]
)
def test_outputs_and_gradients_are_those_of_the_three_layers(
    side: int, padding: int | tuple[int, int], kernel: int, memory: torch.memory_format
) -> None:
    """Odd sides leave a row and a column that is pooled into nothing."""
    inputs = torch.randn(4, 3, side, side + 2, dtype=torch.float64).contiguous(memory_format=memory)
    (expected, slopes), (outputs, got) = both(network(padding, kernel), inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-12)
    assert got.keys() == slopes.keys()
    for name, slope in slopes.items():
        assert slope.abs().max() > 0
        torch.testing.assert_close(got[name], slope, rtol=1e-10, atol=1e-12)


def test_where_places_tie_the_first_gets_the_gradient() -> None:
    """Images have margins of one colour, so ties are everywhere. Small whole numbers: no rounding breaks them."""
    module = network()
    for parameter in module.parameters():
        if not isinstance(parameter, nn.UninitializedParameter):
            parameter.data = torch.randint(-1, 2, parameter.shape).double()
    assert isinstance(module[0].bias, nn.Parameter)
    module[0].bias.data.fill_(3.0)
    inputs = torch.zeros(4, 3, 16, 16, dtype=torch.float64)
    inputs[:, :, 5:9, 6:10] = torch.randint(0, 3, (4, 3, 4, 4)).double()
    (expected, slopes), (outputs, got) = both(module, inputs)
    torch.testing.assert_close(outputs, expected)
    for name, slope in slopes.items():
        torch.testing.assert_close(got[name], slope)


def test_without_a_gradient_the_outputs_are_the_same_bits() -> None:
    module, inputs = network(), torch.randn(7, 3, 16, 16, dtype=torch.float64)
    module(inputs)
    assert pool_at_once(module)
    expected, _ = run(module, inputs)
    with torch.no_grad():
        assert torch.equal(module(inputs), expected)


def test_a_flat_model_stays_one() -> None:
    """Weights and gradients are still views of the flat vectors."""
    module, inputs = network().float(), torch.randn(4, 3, 16, 16)
    module(inputs)
    model, plain = FlatModel(module), FlatModel(copy.deepcopy(module))
    assert pool_at_once(model.module)
    for each in (model, plain):
        each.module(inputs).square().sum().backward()
    assert plain.gradient.abs().max() > 0.1
    assert (model.gradient - plain.gradient).norm() < 1e-5 * plain.gradient.norm()
    before = model.module(inputs)
    model.vector.zero_()
    assert model.module(inputs).abs().max() == 0 < before.abs().max()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, dilation=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, groups=3), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5, padding=2, padding_mode="reflect"), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(3)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.AvgPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.Tanh(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
    ],
)
def test_what_is_wide_or_otherwise_is_left_as_it_is(module: nn.Module) -> None:
    before = repr(module)
    assert not pool_at_once(module)
    assert repr(module) == before


def test_of_the_zoo_the_thesis_networks_with_six_maps_have_it() -> None:
    images = [name for name, architecture in ZOO.items() if architecture.takes == "images"]
    found = {name for name in images if pool_at_once(build_model(ModelConfig(name=name), (3, 32, 32), 10, None))}
    assert found == {"thesis_cifar10", "thesis_pathmnist"}
