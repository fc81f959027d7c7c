"""The terms of a client's objective: gradients against autograd and finite differences, and what they leave alone.

Everything goes through `train`: one step of plain SGD with lr = 1 moves the parameters by minus the gradient.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy

from rayfl.client.bound import Bound, BoundRows, Partner
from rayfl.client.loop import train
from rayfl.client.objective import FeatureContrast, Linear, ParameterContrast, Proximal, Term
from rayfl.config import LocalConfig
from rayfl.models import FlatModel

Batch = tuple[torch.Tensor, torch.Tensor]
Objective = Callable[[torch.Tensor], torch.Tensor]

TAU, WEIGHT, OWN = 0.5, 0.8, 1


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(3 * 4, 3)
    )


def in_float64(module: nn.Module) -> FlatModel:
    """Finite differences need more digits than a FlatModel has, so this one gets new views."""
    model = FlatModel(module)
    layout = model.layout
    model.vector, model.gradient = model.vector.double(), model.gradient.double()
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, where, shape in zip(layout.names, layout.slices, layout.shapes, strict=True):
        tensors[name].grad = None
        tensors[name].data = model.vector[where].view(shape)
        if where.stop <= layout.parameters:
            tensors[name].grad = model.gradient[where].view(shape)
    return model


def batches(count: int, shape: tuple[int, ...] = (6,), dtype: torch.dtype = torch.float64) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, *shape, generator=generator, dtype=dtype), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def cluster_models(model: FlatModel, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(count, model.layout.size, generator=generator, dtype=model.vector.dtype)
    return model.vector + 0.3 * noise.abs()  # batch norm's variances stay positive


def outputs(model: FlatModel, vector: torch.Tensor, inputs: torch.Tensor, cut: int | None = None) -> torch.Tensor:
    """What `network` gives for a flat vector, written apart from the code under test; `cut` drops the head."""
    module = model.module if cut is None else model.module[:cut]  # type: ignore[index]
    held = dict(module.named_parameters())
    layout = zip(model.layout.names, model.layout.slices, model.layout.shapes, strict=True)
    return functional_call(module, {n: vector[s].view(shape) for n, s, shape in layout if n in held}, (inputs,))


def minus_log_share(similarity: torch.Tensor) -> torch.Tensor:
    """Minus the log of Eq. 4.3 and 4.4 as printed, for similarities (..., K)."""
    powers = (similarity / TAU).exp()
    return -(powers[..., OWN] / powers.sum(-1)).log()


def plain(model: FlatModel, batch: Batch) -> Objective:
    return lambda w: cross_entropy(outputs(model, w, batch[0]), batch[1])


def terms_and_objective(kind: str, model: FlatModel, batch: Batch) -> tuple[list[Bound], Partner | None, Objective]:
    """Return the term as `train` takes it, and the whole objective as its equation says."""
    inputs, labels = batch
    models, head = cluster_models(model), model.layout.head
    base = plain(model, batch)
    if kind == "pull":
        target = models[0][head]
        pull = Bound(Proximal(None, WEIGHT), models[:1], part="head")
        return [pull], None, lambda w: base(w) + WEIGHT / 2 * (w[head] - target).pow(2).sum()
    if kind == "linear":
        slope = models[0][: model.layout.parameters]
        return [Bound(Linear(None, WEIGHT), models[:1])], None, lambda w: base(w) + WEIGHT * (w * slope).sum()
    if kind == "outputs":
        fixed_outputs = outputs(model, models[0], inputs).detach()
        near = Bound(NearOutputs(None), models[:1])
        return [near], None, lambda w: base(w) + (outputs(model, w, inputs) - fixed_outputs).pow(2).sum(1).mean()
    if kind == "partner":
        added = outputs(model, models[0], inputs).detach()
        return [], Partner(models[0]), lambda w: cross_entropy(outputs(model, w, inputs) + added, labels)
    if kind == "parameters":
        similarity: Objective = lambda w: cosine_similarity(w[head], models[:, head], dim=1)  # noqa: E731
        contrast = Bound(ParameterContrast(None, TAU, WEIGHT), models, OWN, "head")
        return [contrast], None, lambda w: base(w) + WEIGHT * minus_log_share(similarity(w))
    fixed = torch.stack([outputs(model, m, inputs, cut=4) for m in models], dim=1).detach()

    def with_features(w: torch.Tensor) -> torch.Tensor:
        features = outputs(model, w, inputs, cut=4)[:, None]
        return base(w) + WEIGHT * minus_log_share(cosine_similarity(features, fixed, dim=2)).mean()

    return [Bound(FeatureContrast(None, TAU, WEIGHT), models, OWN)], None, with_features


def gradient_of_a_step(model: FlatModel, batch: Batch, *terms: object) -> torch.Tensor:
    before = model.copy()
    train(model, [batch], LocalConfig(steps=1), 1.0, *terms)  # type: ignore[arg-type]
    gradient = (before - model.vector)[: model.layout.parameters]
    model.load(before)
    return gradient


@dataclass(frozen=True)
class NearOutputs(Term):
    """A custom term on outputs: their squared distance from those of the model that a client is given."""

    on = "outputs"

    def losses(self, numbers: torch.Tensor, fixed: Sequence[torch.Tensor], own: torch.Tensor) -> torch.Tensor:
        return (numbers - fixed[0]).square().sum(2)


KINDS = ["pull", "linear", "outputs", "partner", "parameters", "representations"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_each_term_is_that_of_autograd_and_of_finite_differences(kind: str) -> None:
    model, batch = in_float64(network()), batches(1)[0]
    *terms, objective = terms_and_objective(kind, model, batch)
    gradient = gradient_of_a_step(model, batch, *terms)
    w = model.copy().requires_grad_()
    (by_autograd,) = torch.autograd.grad(objective(w), w)
    torch.testing.assert_close(gradient, by_autograd, rtol=1e-10, atol=1e-12)

    step = 1e-6 * torch.eye(len(w), dtype=torch.float64)
    with torch.no_grad():
        differences = torch.stack([(objective(w + e) - objective(w - e)) / 2e-6 for e in step])
    torch.testing.assert_close(gradient, differences, rtol=1e-6, atol=1e-8)
    without = gradient_of_a_step(model, batch)
    assert (gradient - without).norm() > 0.01 * without.norm()  # the trap: a term that carries no gradient


@pytest.mark.parametrize("kind", KINDS)
def test_a_term_keeps_its_strength_from_step_to_step(kind: str) -> None:
    """A trap of public code: a temperature overwritten inside the loop."""
    model, batch = in_float64(network()), batches(1)[0]
    *terms, objective = terms_and_objective(kind, model, batch)
    w = model.copy()
    train(model, [batch] * 4, LocalConfig(steps=4, momentum=0.9), 0.1, *terms)  # type: ignore[arg-type]
    velocity = torch.zeros_like(w)
    for _ in range(4):
        w.requires_grad_()
        (gradient,) = torch.autograd.grad(objective(w), w)
        velocity = 0.9 * velocity + gradient
        w = (w - 0.1 * velocity).detach()
    torch.testing.assert_close(model.vector, w, rtol=1e-9, atol=1e-11)


def test_global_and_cluster_model_trained_at_once_are_each_trained_beside_the_others_start() -> None:
    """CAM, Eq. 5 and 8 (FedSim): neither sees what the other has learnt in this round."""
    starts = torch.stack([FlatModel(network()).copy(), cluster_models(FlatModel(network()))[0]])
    data = batches(5, dtype=torch.float32)
    trained = []
    for own, other in ((0, 1), (1, 0)):
        model = FlatModel(network())
        model.load(starts[own])
        train(model, data, LocalConfig(steps=5, momentum=0.9), 0.1, partner=Partner(starts[other]))
        trained.append(model.copy())

    def module(vector: torch.Tensor) -> nn.Module:
        result = network()
        nn.utils.vector_to_parameters(vector.clone(), result.parameters())
        return result

    pair, frozen = [module(v) for v in starts], [module(v) for v in starts]
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in pair]
    for inputs, labels in data:
        for m, fixed, optimiser in zip(pair, reversed(frozen), optimisers, strict=True):
            optimiser.zero_grad()
            cross_entropy(m(inputs) + fixed(inputs).detach(), labels).backward()
            optimiser.step()
    for result, m in zip(trained, pair, strict=True):
        expected = nn.utils.parameters_to_vector(m.parameters()).detach()
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_a_partner_with_batch_norm_answers_in_eval_mode_while_the_model_learns_in_train_mode() -> None:
    model = FlatModel(convolutional())
    partner = cluster_models(model)[0]
    data = batches(3, (1, 4, 4), torch.float32)
    reference, fixed = convolutional(), FlatModel(convolutional())
    fixed.load(partner)
    fixed.module.eval()
    optimiser = torch.optim.SGD(reference.parameters(), 0.1, 0.9)
    torch.manual_seed(3)
    for inputs, labels in data:
        optimiser.zero_grad()
        cross_entropy(reference(inputs) + fixed.module(inputs).detach(), labels).backward()
        optimiser.step()
    torch.manual_seed(3)  # the partner draws no random numbers, so dropout takes the same units
    train(model, data, LocalConfig(steps=3, momentum=0.9), 0.1, partner=Partner(partner))
    torch.testing.assert_close(model.vector, FlatModel(reference).vector, rtol=1e-5, atol=1e-6)


def test_training_leaves_partner_and_cluster_models_alone_and_they_leave_its_buffers_alone() -> None:
    plain_run, model = FlatModel(convolutional()), FlatModel(convolutional())
    models = cluster_models(model)
    shared, partner = models.clone(), models[0].clone()
    data = batches(1, (1, 4, 4), torch.float32)
    contrasts = [
        Bound(ParameterContrast(None, TAU, WEIGHT), shared, OWN),
        Bound(FeatureContrast(None, TAU, WEIGHT), shared, OWN),
    ]
    for each, terms in ((plain_run, {}), (model, {"partner": Partner(partner), "terms": contrasts})):
        torch.manual_seed(3)
        train(each, data, LocalConfig(steps=1), 0.1, **terms)  # type: ignore[arg-type]
    assert torch.equal(shared, models)
    assert torch.equal(partner, models[0])
    buffers = model.layout.buffers
    assert torch.equal(model.vector[buffers], plain_run.vector[buffers])  # one batch, seen once, by the trained model
    assert not torch.equal(model.vector, plain_run.vector)
    assert all(m.training for m in model.module.modules())


def test_one_cluster_has_nothing_to_contrast_with() -> None:
    model = FlatModel(network())
    batch = batches(1, dtype=torch.float32)[0]
    models = cluster_models(model, 1)
    para, rep = (Bound(kind(None, TAU, WEIGHT), models) for kind in (ParameterContrast, FeatureContrast))
    assert torch.equal(gradient_of_a_step(model, batch, [para]), gradient_of_a_step(model, batch))
    gradient = torch.zeros(1, model.layout.parameters)
    BoundRows([para], 1, model.layout).add_gradient(slice(0, 1), model.vector[None], gradient)
    assert not gradient.any()
    features = torch.randn(1, 8, 4, requires_grad=True)
    loss = BoundRows([rep], 1, model.layout).losses(slice(0, 1), features, [torch.randn(1, 8, 4)]).sum()
    loss.backward()
    assert loss.item() == 0
    assert features.grad is not None and not features.grad.any()


def test_the_parameter_contrast_of_two_orthogonal_models_is_the_one_by_hand() -> None:
    """At w = (2, 0) between u = (1, 0), its own, and v = (0, 3): s = (1, 0), so only the second coordinate moves."""
    contrast = ParameterContrast(None, 0.5, 0.8)
    gradient, models = torch.zeros(1, 2), contrast.kept(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    contrast.add_gradient(torch.tensor([[2.0, 0.0]]), gradient, list(models[:, None]), torch.tensor([0]))
    share_of_v = 1 / (1 + math.exp(1 / 0.5))
    assert gradient[0].tolist() == pytest.approx([0, 0.8 / 0.5 * share_of_v / 2])


def test_a_vector_of_zeros_has_no_angle_and_so_no_gradient() -> None:
    own, gradient = torch.tensor([OWN]), torch.zeros(1, 4)
    contrast = ParameterContrast(None, TAU, WEIGHT)
    contrast.add_gradient(torch.zeros(1, 4), gradient, list(contrast.kept(torch.randn(3, 4))[:, None]), own)
    assert not gradient.any()
    features = torch.zeros(1, 8, 4, requires_grad=True)
    loss = FeatureContrast(None, TAU, WEIGHT).losses(features, list(torch.randn(3, 1, 8, 4)), own).mean()
    loss.backward()
    assert loss.item() == pytest.approx(WEIGHT * math.log(3))
    assert features.grad is not None
    assert not features.grad.any()


@pytest.mark.parametrize("kind", [ParameterContrast, FeatureContrast])
@pytest.mark.parametrize(("own", "tau", "message"), [(-1, 0.5, "own=-1"), (3, 0.5, "own=3"), (0, 0.0, "temperature=0")])
def test_a_contrast_refuses_a_cluster_that_is_not_there_and_a_temperature_of_zero(
    kind: type[ParameterContrast], own: int, tau: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Bound(kind(None, tau, 1.0), torch.ones(3, 4), own)


def test_a_term_over_a_part_in_pieces_leaves_the_rest_alone() -> None:
    model = FlatModel(convolutional())
    layout = model.layout
    bound = Bound(Proximal(None, 1.0), cluster_models(model)[:1], part="without_norm")
    pull = BoundRows([bound], 1, layout)
    pull.enter(0, bound)
    gradient = torch.zeros(1, layout.parameters)
    pull.add_gradient(slice(0, 1), model.vector[None, : layout.parameters], gradient)
    pieces = layout.trainable("without_norm")
    assert len(pieces) == 2
    difference = (model.vector - cluster_models(model)[0])[: layout.parameters]
    for where in pieces:
        torch.testing.assert_close(gradient[0, where], difference[where])
    assert not gradient[0, pieces[0].stop : pieces[1].start].any()
    contrast = Bound(ParameterContrast(None, 1.0, 1.0), cluster_models(model), part="without_norm")
    with pytest.raises(ValueError, match="ParameterContrast cannot be over part 'without_norm'"):
        BoundRows([contrast], 1, layout)
