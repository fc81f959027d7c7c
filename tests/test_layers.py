"""Plain networks written out for several models: what each model gives by itself, and its gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from rayfl.client.layers import PlainLayers, is_plain
from rayfl.config import ModelConfig
from rayfl.models import ZOO, FlatModel, build_model
from rayfl.models.flat import by_name

MODELS, SAMPLES, CLASSES = 3, 6, 5


def convolutional() -> nn.Module:
    """What the zoo lacks: groups, a stride, padding by name, no bias, sequences in sequences, a layer twice."""
    again = nn.Linear(10, 10)
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(2, 4, 3, padding="same", bias=False),
        nn.BatchNorm2d(4, affine=False),
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.LeakyReLU(0.1)),
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.BatchNorm2d(6, track_running_stats=False),
        nn.Identity(),
        nn.Flatten(),
        nn.Sequential(nn.ReLU(), nn.Linear(24, 10), again, nn.ReLU(), again, nn.Linear(10, CLASSES, bias=False)),
    )


def dense_before_flattening() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "convolutional": (convolutional, "10"),
    "dense before flattening": (dense_before_flattening, None),
    **{
        name: (lambda name=name: build_model(ModelConfig(name=name), (2, 8, 8), CLASSES), None)
        for name, architecture in ZOO.items()
        if architecture.takes != "text" and architecture.smallest <= 8 and not name.startswith("resnet")
    },
}


def doubled(kind: str) -> tuple[FlatModel, torch.Tensor]:
    """Return a network, and rows of weights for it."""
    torch.manual_seed(0)
    build, head = NETWORKS[kind]
    model = FlatModel(build(), head, dtype=torch.float64)
    return model, model.vector * (1 + 0.5 * torch.rand(MODELS, model.layout.size, dtype=torch.float64))


def contiguous(model: FlatModel, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return tensors of their own by name: batch norm writes to its statistics."""
    return {name: tensor.clone() for name, tensor in by_name(model.layout, rows).items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_each_model_gives_what_it_gives_by_itself(kind: str, shared: bool, training: bool) -> None:
    """Features, logits, and in training the gradients and the statistics of batch norm."""
    model, rows = doubled(kind)
    assert is_plain(model.module)
    model.module.train(training)
    for module in model.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    inputs = torch.randn(1 if shared else MODELS, SAMPLES, 2, 8, 8, dtype=torch.float64).expand(MODELS, -1, -1, -1, -1)
    weights = contiguous(model, rows)
    parameters = [n for n, p in model.module.named_parameters() if n in weights]
    for name in parameters:
        weights[name].requires_grad_()
    features, logits = PlainLayers(model, features=True)(weights, inputs)
    (only_logits,) = PlainLayers(model)({n: w.detach().clone() for n, w in weights.items()}, inputs)
    torch.testing.assert_close(only_logits, logits.detach())
    gradients = torch.autograd.grad(logits.square().sum(), [weights[name] for name in parameters])
    for row in range(MODELS):
        model.load(rows[row])
        expected_features, expected = model.features(inputs[row])
        torch.testing.assert_close(features[row].flatten(1), expected_features.flatten(1))
        torch.testing.assert_close(logits[row], expected)
        model.gradient.zero_()
        expected.square().sum().backward()
        for name, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(gradient[row].flatten(), model.gradient[where_of(model, name)])
        for name in set(weights) - set(parameters):
            torch.testing.assert_close(weights[name][row].flatten(), model.vector[where_of(model, name)])


def where_of(model: FlatModel, name: str) -> slice:
    return model.layout.slices[model.layout.names.index(name)]


def test_where_numbers_are_equal_the_gradient_goes_where_it_goes_in_the_network() -> None:
    """ReLU and max pooling change places: on ties, above, at and below 0, that must not show."""
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)))
    model.vector[:2] = torch.tensor([1.0, 0.0])
    tied = torch.tensor([[2.0, 2, 0, 0], [2, 1, 0, 0], [-1, -1, 0, -3], [-1, -1, 3, 3]]).view(1, 1, 1, 4, 4)
    inputs = tied.clone().requires_grad_()
    (logits,) = PlainLayers(model)(contiguous(model, model.vector[None]), inputs)
    (got,) = torch.autograd.grad(logits.sum(), inputs)
    alone = tied[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(model.module(alone).sum(), alone)
    assert expected.count_nonzero() == 2  # of the window with 2s and of the one with 3s, the first
    torch.testing.assert_close(got[0], expected)


@pytest.mark.parametrize(
    "pooling",
    [nn.MaxPool2d(2), nn.MaxPool2d((2, 2), 2, ceil_mode=True), nn.MaxPool2d(3, 2), nn.MaxPool2d(2, padding=1)],
)
@pytest.mark.parametrize("shape", [(2, 28, 28), (3, 9, 7), (1, 3, 3)])
def test_pooling_gives_the_same_bits_without_gradients(pooling: nn.Module, shape: tuple[int, ...]) -> None:
    """Where no gradient is needed, it may be computed in another way."""
    torch.manual_seed(0)
    inputs = torch.randn(MODELS, SAMPLES, *shape)
    expected = torch.stack([pooling(rows).flatten(1) for rows in inputs])
    model = FlatModel(nn.Sequential(pooling, nn.Flatten(), nn.Linear(expected.shape[-1], CLASSES)))
    rows = contiguous(model, model.vector.expand(MODELS, -1))
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            features, _ = PlainLayers(model, features=True)(rows, inputs)
        assert torch.equal(features.flatten(2), expected)


class Own(nn.Sequential):
    """May do anything."""


def hooked() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda _, __, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    "module",
    [
        Own(nn.Linear(3, 2)),
        nn.Sequential(hooked()),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.MaxPool2d(2, return_indices=True),
        nn.Flatten(2),
        nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        nn.BatchNorm1d(3),
    ],
)
def test_what_is_not_known_layer_by_layer_is_left_to_vmap(module: nn.Module) -> None:
    assert not is_plain(module)
