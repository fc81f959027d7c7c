"""The loop trainer, its batches and the evaluation, against numbers worked out by hand or by torch itself."""

from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from rayfl.client.batches import draw_batches
from rayfl.client.bound import Bound
from rayfl.client.evaluation import score_together
from rayfl.client.loop import train
from rayfl.client.objective import Proximal
from rayfl.client.passes import CHUNK, plan_groups
from rayfl.client.task import mean_f1
from rayfl.config import LocalConfig
from rayfl.models import FlatModel


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_flat_update_is_torchs_own_sgd(momentum: float, weight_decay: float) -> None:
    local = LocalConfig(steps=4, momentum=momentum, weight_decay=weight_decay)
    model = FlatModel(network())
    train(model, batches(), local, lr=0.1)
    reference = network()
    optimiser = torch.optim.SGD(reference.parameters(), 0.1, momentum, weight_decay=weight_decay)
    for inputs, labels in batches():
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        optimiser.step()
    expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
    torch.testing.assert_close(model.vector, expected, rtol=1e-6, atol=1e-7)


def test_the_pulls_in_closed_form_are_the_autograd_of_their_terms() -> None:
    """Alg. 1 of FedAC: mu (w - W) on all parameters and lambda (phi - Phi) on the backbone, each step."""
    mu, lam = 0.7, 0.3
    model = FlatModel(network())
    centre = torch.linspace(-1, 1, model.layout.parameters)
    backbone = model.layout.backbone
    embedding = torch.full((backbone.stop,), 0.25)
    whole = torch.cat([embedding, torch.ones(model.layout.parameters - backbone.stop)])
    pulls = [Bound(Proximal(None, mu), centre[None]), Bound(Proximal(None, lam), whole[None], part="backbone")]
    train(model, batches(), LocalConfig(steps=4), 0.1, pulls)

    reference = network()
    for inputs, labels in batches():
        w = torch.cat([p.flatten() for p in reference.parameters()])
        loss = nn.functional.cross_entropy(reference(inputs), labels)
        loss = loss + mu / 2 * (w - centre).square().sum()
        loss = loss + lam / 2 * (w[backbone] - embedding).square().sum()
        gradients = torch.autograd.grad(loss, list(reference.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(reference.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
    torch.testing.assert_close(model.vector, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("momentum", "last"), [(0.0, 0.5), (0.5, 0.75)])
def test_a_pull_per_step_goes_its_share_of_the_way_at_any_learning_rate_and_momentum(
    momentum: float, last: float
) -> None:
    """Thesis Eq. 7.13, (1 - lambda) w + lambda W - eta v, by hand: lambda 1/2, eta 1/4, v = momentum v + gradient.

    A sample x = 2 of class 0, and for each of two classes one weight; p is the second class's probability. The
    gradients are -2 p and 2 p, and the weights so far apart that p is 1. So v is (-2, 2), then, with a momentum of 1/2,
    (-3, 3).
    """
    model = FlatModel(nn.Linear(1, 2, bias=False))
    model.load(torch.tensor([-100.0, 100.0]))
    target = torch.tensor([-99.0, 105.0])
    batch = (torch.tensor([[2.0]]), torch.tensor([0]))
    pull = Bound(Proximal(None, 0.5, per_step=True), target[None])
    train(model, [batch], LocalConfig(steps=1, momentum=momentum), 0.25, [pull])
    first = torch.tensor([-99.5 + 0.5, 102.5 - 0.5])  # half of the way, and a quarter of the gradient
    torch.testing.assert_close(model.vector, first)
    model.load(torch.tensor([-100.0, 100.0]))
    train(model, [batch, batch], LocalConfig(steps=2, momentum=momentum), 0.25, [pull])
    torch.testing.assert_close(model.vector, torch.tensor([-99.0 + last, 103.5 - last]))  # half of the rest of the way


def test_training_leaves_the_targets_of_its_pulls_alone() -> None:
    model = FlatModel(network())
    target = torch.ones(model.layout.parameters)
    train(model, batches(), LocalConfig(steps=4), 0.1, [Bound(Proximal(None, 0.5), target[None])])
    assert torch.equal(target, torch.ones_like(target))


def test_steps_go_through_all_data_before_any_sample_comes_again() -> None:
    drawn = draw_batches(np.random.default_rng(0), 10, LocalConfig(steps=5, batch_size=4))
    assert [b.size for b in drawn] == [4] * 5
    stream = np.concatenate(drawn)
    assert sorted(stream[:10]) == list(range(10))
    assert sorted(stream[10:]) == list(range(10))


def test_a_small_client_trains_on_all_it_has() -> None:
    drawn = draw_batches(np.random.default_rng(0), 3, LocalConfig(steps=2, batch_size=32))
    assert [sorted(b) for b in drawn] == [[0, 1, 2]] * 2


def test_an_epoch_sees_every_sample_once() -> None:
    drawn = draw_batches(np.random.default_rng(0), 10, LocalConfig(epochs=2, batch_size=4))
    assert [b.size for b in drawn] == [4, 4, 2] * 2
    assert sorted(np.concatenate(drawn[:3])) == list(range(10))


def test_macro_f1_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 7, 60), rng.integers(0, 7, 60)
    assert mean_f1(true, predicted, 10) == pytest.approx(f1_score(true, predicted, average="macro"))


def test_scores_of_clients_tested_together_are_each_their_own() -> None:
    model = FlatModel(network())
    tests = batches(3)
    together = score_together(model, tests)
    for (inputs, labels), (accuracy, _, loss) in zip(tests, together, strict=True):
        logits = model.module(inputs)
        assert accuracy == pytest.approx((logits.argmax(1) == labels).double().mean().item())
        assert loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_evaluation_does_not_let_batch_norm_learn_from_test_data() -> None:
    """A trap of public code: no eval() at test time."""
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    before = model.copy()
    score_together(model, batches(2))
    assert torch.equal(model.vector, before)


class Given(nn.Module):
    """Its logits are its weights, whatever comes in: one row of (inputs, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.ones(len(inputs), 1))


@pytest.mark.parametrize(
    ("combine", "probability"),
    [
        ("logits", 0.9 * 0.1 * 0.1 / (0.9 * 0.1 * 0.1 + 0.1 * 0.9 * 0.9)),
        ("probabilities", (0.9 + 0.1 + 0.1) / 3),
    ],
)
def test_models_that_answer_together_are_combined_as_by_hand(
    combine: Literal["logits", "probabilities"], probability: float
) -> None:
    """Three models give class 0 the probabilities 0.9, 0.1 and 0.1; both samples are of class 0."""
    model = FlatModel(Given())
    vectors = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]).log()
    model.load(vectors[0])
    tests = [(torch.zeros(2, 1), torch.tensor([0, 0]))]
    alone = score_together(model, tests)
    assert alone == [(1.0, 1.0, pytest.approx(-np.log(0.9)))]
    scores = score_together(model, tests, list(vectors[1:]), combine)
    assert scores == [(0.0, 0.0, pytest.approx(-np.log(probability)))]
    assert torch.equal(model.vector, vectors[0])


def test_a_confident_model_wins_the_sum_of_logits_and_loses_the_soft_vote() -> None:
    """CAM adds logits, so 20 against -3 and -3 counts; in a soft vote every model has one voice."""
    model = FlatModel(Given())
    vectors = torch.tensor([[20.0, 0.0], [-3.0, 0.0], [-3.0, 0.0]])
    model.load(vectors[0])
    tests = [(torch.zeros(1, 1), torch.tensor([0]))]
    (summed,) = score_together(model, tests, list(vectors[1:]), "logits")
    (voted,) = score_together(model, tests, list(vectors[1:]), "probabilities")
    assert (summed[0], voted[0]) == (1, 0)
    assert summed[2] == pytest.approx(np.log1p(np.exp(-14.0)), abs=1e-7)
    assert voted[2] == pytest.approx(-np.log((1 + 2 / (1 + np.exp(3))) / 3), rel=1e-5)


def test_an_unknown_way_to_combine_is_refused() -> None:
    model = FlatModel(network())
    with pytest.raises(ValueError, match="votes"):
        score_together(model, batches(1), [model.copy()], "votes")  # type: ignore[arg-type]


def test_groups_hold_every_client_once_and_about_a_chunk_of_samples() -> None:
    rng = np.random.default_rng(0)
    choice, sizes = rng.integers(-1, 4, 500), rng.integers(1, 90, 500)
    groups = plan_groups(choice, sizes)
    assert sorted(np.concatenate([g for _, g in groups])) == list(range(500))
    for model, members in groups:
        assert (choice[members] == model).all()
        assert sizes[members].sum() < CHUNK + 90
