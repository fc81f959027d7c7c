"""What a researcher changes of local training: loss, metrics, optimiser, schedule, clipping, augmentation."""

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from rayfl.client import schedules, task
from rayfl.client.augmentation import Augmentation
from rayfl.client.loop import train
from rayfl.client.optimisers import optimiser_of
from rayfl.client.task import Classification, Regression, find_task, mae, mse, r2
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import train_together
from rayfl.config import LocalConfig, load_config
from rayfl.errors import InputError
from rayfl.models import FlatModel
from rayfl.results import Run
from rayfl.simulation.server import Server

SMALL = [
    "federation=serial",
    "rounds=2",
    "partition.clients=6",
    "data.limit=300",
    "local.steps=3",
    "method.name=fedavg",
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


# -- optimisers ------------------------------------------------------------------------------------------------------

LOCALS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": ({"optimizer": "adam"}, torch.optim.Adam, {}),
    "adam with decay": ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
    "adam with options": (
        {"optimizer": "adam", "optimizer_options": {"beta1": 0.5, "beta2": 0.7, "epsilon": 1e-3}},
        torch.optim.Adam,
        {"betas": (0.5, 0.7), "eps": 1e-3},
    ),
    "clipped sgd": ({"momentum": 0.9, "clip_norm": 0.05}, torch.optim.SGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize("kind", LOCALS)
def test_both_trainers_step_as_torchs_own_optimisers(kind: str) -> None:
    given, optimiser, options = LOCALS[kind]
    local = LocalConfig(steps=4, batch_size=8, **given)
    reference = network()
    theirs = optimiser(reference.parameters(), lr=0.01, **options)
    for inputs, labels in batches():
        theirs.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        if local.clip_norm:
            assert nn.utils.clip_grad_norm_(reference.parameters(), local.clip_norm) > local.clip_norm
        theirs.step()
    expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
    model = FlatModel(network())
    start = model.copy()
    train(model, batches(), local, lr=0.01)
    torch.testing.assert_close(model.vector, expected, rtol=1e-5, atol=1e-6)
    others = [TrainingJob(start, batches(count), seed=0) for count in (2, 4, 4, 1)]
    together = train_together(FlatModel(network()), others, local, lr=0.01)
    torch.testing.assert_close(together[1], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(together[1], together[2])
    (alone,) = train_together(FlatModel(network()), others[1:2], local, lr=0.01)
    assert torch.equal(alone, together[1])  # whoever else is trained, and whatever step they are at


def test_a_gradient_of_zeros_is_clipped_to_zeros() -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    with torch.no_grad():
        model.vector.zero_()
    inputs, labels = torch.zeros(3, 6), torch.arange(3)
    train(model, [(inputs, labels)], LocalConfig(steps=1, clip_norm=0.1), lr=0.1)
    assert model.vector.abs().max() < 1e-7


@pytest.mark.parametrize("together", [False, True])
def test_only_the_part_that_is_trained_changes(together: bool) -> None:
    model = FlatModel(network())
    start, head = model.copy(), model.layout.head
    job = TrainingJob(start, batches(), seed=0, trained=model.layout.trainable("head"))
    local = LocalConfig(steps=4, batch_size=8, momentum=0.9, weight_decay=0.1)
    if together:
        (vector,) = train_together(model, [job], local, lr=0.1)
    else:
        train(model, job.batches, local, 0.1, trained=job.trained)
        vector = model.vector
    assert torch.equal(vector[: head.start], start[: head.start])
    assert (vector[head] != start[head]).all()


def test_everything_but_normalisation_layers_is_a_part() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    layout = model.layout
    names = [n for n, inside in zip(layout.names, layout.tensors_in("without_norm"), strict=True) if inside]
    assert names == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert layout.trainable("without_norm") == (slice(0, 16), slice(24, 34))
    assert layout.ranges("without_norm") == (slice(0, 16), slice(24, 34))
    assert not layout.covers("without_norm")
    with pytest.raises(ValueError, match="not one piece"):
        layout.part("without_norm")


def test_a_method_trains_a_part_of_the_network(serial_server: Callable[..., Server]) -> None:
    server = serial_server(*SMALL[1:])
    fed = server.fed
    fed.begin_round(1)
    fed.train(np.arange(6), keep=True, part="head")
    models = fed.collect(np.arange(6), buffers=True)
    head = fed.layout.head
    assert np.array_equal(models[:, : head.start], np.tile(fed.initial[: head.start], (6, 1)))
    assert (models[:, head] != fed.initial[head]).any(axis=1).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["local.optimizer=adm"], r"local\.optimizer='adm' is not allowed \(did you mean 'adam'\?\); allowed: sgd"),
        (["local.optimizer=adam", "local.momentum=0.9"], r"local\.momentum=0\.9 is not used by local\.optimizer=adam"),
        (
            ["local.optimizer_options={beta1: 0.5}"],
            r"optimizer_options\.beta1=0\.5 is not used by local\.optimizer=sgd",
        ),
        (["local.optimizer=adam", "local.optimizer_options={beta1: 2}"], r"beta1=2 .* must be in \[0, 1\)"),
        (["local.optimizer=json:dumps"], r"local\.optimizer=json:dumps is not a subclass"),
        (["local.schedule=cosin"], r"local\.schedule='cosin' is not allowed \(did you mean 'cosine'\?\)"),
        (["local.schedule=step", "local.schedule_options={each: 3}"], r"its options are every, factor"),
        (["local.schedule=step", "local.schedule_options={every: 0}"], r"every=0 must be above 0"),
        (["local.schedule=cosine", "local.lr_decay=0.9"], r"local\.lr_decay=0\.9 is not used by local\.schedule"),
        (["local.keep_momentum=true", "local.momentum=0.9", "local.optimizer=adam"], r"goes with local\.optimizer=sgd"),
        (["task=regresion"], r"task='regresion' is not allowed \(did you mean 'regression'\?\)"),
        (["task=json:dumps"], r"task=json:dumps is not a subclass of rayfl\.Task"),
        (["local.augment=[rotate]"], r"local\.augment\.0='rotate' is not allowed"),
    ],
)
def test_what_cannot_be_is_refused_before_work_starts(
    words: list[str], message: str, simulate_quietly: Callable[..., Run], tmp_path: Any
) -> None:
    with pytest.raises(InputError, match=message):
        simulate_quietly(*SMALL, *words)
    assert not list(tmp_path.iterdir())


# -- schedules -------------------------------------------------------------------------------------------------------


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(schedules).failed == 0
    assert doctest.testmod(task).failed == 0


def test_a_schedule_of_ones_own_and_a_built_in_one_move_the_learning_rate(
    own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run]
) -> None:
    own_code("halving", "def halve(round, by=2.0):\n    return by ** -(round - 1)\n")
    words = [*SMALL, "rounds=3", "local.lr=0.1"]
    own = simulate_quietly(*words, "local.schedule=halving:halve")
    decayed = simulate_quietly(*words, "local.lr_decay=0.5")
    stepped = simulate_quietly(*words, "local.schedule=step", "local.schedule_options={every: 1, factor: 0.5}")
    constant = simulate_quietly(*words)
    assert own.rounds["loss"].tolist() == decayed.rounds["loss"].tolist() == stepped.rounds["loss"].tolist()
    assert own.rounds["loss"].tolist()[1:] != constant.rounds["loss"].tolist()[1:]


def test_a_cosine_is_over_the_rounds_that_the_run_began_with(simulate_quietly: Callable[..., Run]) -> None:
    from rayfl.launch import resume
    from rayfl.simulation.screen import Screen

    run = simulate_quietly(*SMALL, "local.schedule=cosine")
    assert run.config.local.schedule_options == {"over": 2}
    longer = resume(run.path, ["rounds=4"], Screen(quiet=True))
    assert longer.config.local.schedule_options == {"over": 2}
    losses = longer.rounds["loss"].tolist()
    assert losses[2] == losses[3]  # the rate is 0 from round 3 on


# -- augmentation ----------------------------------------------------------------------------------------------------


def test_images_are_moved_and_mirrored_by_hand() -> None:
    class Drawn(np.random.Generator):
        def integers(self, *_: Any) -> np.ndarray:  # type: ignore[override]
            return np.array([[0, 0], [1, 2], [1, 1]])

        def random(self, *_: Any) -> np.ndarray:  # type: ignore[override]
            return np.array([0.9, 0.9, 0.1])

    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None]
    drawn = Augmentation(["crop", "flip"], 1, Drawn(np.random.PCG64(0)), 3, np.array([-1.0]))
    moved = drawn.apply(torch.stack([image] * 3), 0)
    assert moved[0, 0].tolist() == [[-1, -1], [-1, 1]]  # down and to the right, black comes in
    assert moved[1, 0].tolist() == [[2, -1], [4, -1]]  # to the left
    assert moved[2, 0].tolist() == [[2, 1], [4, 3]]  # where it was, mirrored
    assert torch.equal(drawn.apply(image[None], 1)[0], moved[1])  # in whatever pieces they come


def test_augmentation_is_seeded_and_for_images_only(simulate_quietly: Callable[..., Run], tmp_path: Any) -> None:
    words = [*SMALL, "local.augment=[crop, flip]", "local.crop_padding=1"]
    first, second, without = simulate_quietly(*words), simulate_quietly(*words), simulate_quietly(*SMALL)
    assert first.rounds["loss"].tolist() == second.rounds["loss"].tolist() != without.rounds["loss"].tolist()
    frame = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0) % 7, "label": np.arange(60) % 3})
    frame.to_parquet(tmp_path / "vectors.parquet")
    vectors = ["data.source=parquet", f"data.path={tmp_path}/vectors.parquet", "model.name=mlp", "partition.kind=iid"]
    with pytest.raises(InputError, match=r"local\.augment=\['flip'\] is for images, and data\.source=parquet has none"):
        simulate_quietly(*[w for w in SMALL if "limit" not in w], *vectors, "local.augment=[flip]")


# -- tasks -----------------------------------------------------------------------------------------------------------

FOCAL = """
import numpy as np
import torch
from rayfl.client.task import Classification

class Focal(Classification):
    metrics = {**Classification.metrics, "confidence": lambda outputs, labels: float(outputs.max(1).mean())}

    def loss(self, outputs, labels):
        likelihood = outputs.log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -((1 - likelihood.exp()) ** 2) * likelihood
"""


def test_a_loss_and_a_metric_of_ones_own(
    own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run]
) -> None:
    own_code("focal", FOCAL)
    runs = [
        simulate_quietly(*SMALL, f"task={name}", f"training={training}")
        for name in ("focal:Focal", "classification")
        for training in ("loop", "vectorised")
    ]
    focal, together, plain, _ = runs
    assert focal.rounds["loss"].iloc[-1] == pytest.approx(together.rounds["loss"].iloc[-1], rel=1e-4)
    assert focal.rounds["loss"].iloc[-1] < 0.9 * plain.rounds["loss"].iloc[-1]
    assert "confidence" not in plain.clients and "confidence" not in plain.rounds
    last = focal.clients[focal.clients["round"] == 2]
    weighted = np.average(last["confidence"], weights=last["n_test"])
    assert focal.rounds["confidence"].iloc[-1] == pytest.approx(weighted, rel=1e-12)
    assert focal.rounds["confidence_mean"].iloc[-1] == pytest.approx(last["confidence"].mean(), rel=1e-12)


def test_a_run_with_a_metric_of_its_own_is_resumed_once_its_code_is_named(
    own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run]
) -> None:
    from rayfl.launch import resume
    from rayfl.simulation.screen import Screen

    own_code("focal", FOCAL)
    run = simulate_quietly(*SMALL, "task=focal:Focal")
    with pytest.raises(InputError, match=r"names code to be imported, task=focal:Focal: if you trust it"):
        resume(run.path, ["rounds=3"], Screen(quiet=True))
    longer = resume(run.path, ["rounds=3", "task=focal:Focal"], Screen(quiet=True))
    assert longer.rounds["confidence"].notna().sum() == 3


def test_the_spread_over_clients_is_in_the_rounds_table(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*SMALL, "partition.clients=20", "data.limit=600")
    last = run.clients[run.clients["round"] == 2]["accuracy"].sort_values()
    row = run.rounds.iloc[-1]
    assert row["accuracy_std"] == pytest.approx(last.std(ddof=0), rel=1e-12)
    assert row["accuracy_worst10"] == pytest.approx(last.iloc[:2].mean(), rel=1e-12)
    assert set(run.clients["method"]) == {"fedavg"} and set(run.clients["seed"]) == {0}


def test_measures_of_a_regression_by_hand() -> None:
    outputs, labels = np.array([[1.0], [2.0], [5.0]], np.float32), np.array([1.0, 4.0, 4.0], np.float32)
    assert mse(outputs, labels) == pytest.approx(5 / 3)
    assert mae(outputs, labels) == pytest.approx(1.0)
    assert r2(outputs, labels) == pytest.approx(1 - 5 / 6)
    assert np.isnan(r2(outputs, np.full(3, 2.0)))
    losses = Regression().loss(torch.from_numpy(outputs), torch.from_numpy(labels))
    assert losses.tolist() == [0, 4, 1]
    stacked = torch.tensor([[[1.0]], [[4.0]]])
    assert Regression().combined(stacked, "logits").tolist() == [[5.0]]
    assert Regression().combined(stacked, "probabilities").tolist() == [[2.5]]


def test_a_task_needs_a_loss_and_metrics_with_names_of_their_own(own_code: Callable[[str, str], None]) -> None:
    own_code("wrong", FOCAL.replace('"confidence"', '"n_test"'))
    with pytest.raises(InputError, match=r"no metric can be called 'n_test'"):
        find_task("wrong:Focal")
    own_code("empty", "from rayfl.client.task import Task\n\nclass Empty(Task):\n    pass\n")
    with pytest.raises(InputError, match=r"task=empty:Empty has no loss"):
        find_task("empty:Empty")
    own_code("bare", "from rayfl.client.task import Regression\n\nclass Bare(Regression):\n    metrics = {}\n")
    with pytest.raises(InputError, match=r"task=bare:Bare has no metrics"):
        find_task("bare:Bare")
    assert isinstance(find_task("classification"), Classification)


def test_an_optimiser_of_ones_own(own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run]) -> None:
    own_code(
        "signs",
        """
from rayfl.client.optimisers import Optimiser

class Signs(Optimiser):
    def __init__(self, weight_decay=0.0, scale=1.0):
        super().__init__(weight_decay)
        self.scale = scale

    def init(self, parameters):
        return {}

    def step(self, parameters, gradient, state):
        return gradient.sign() * self.scale
""",
    )
    words = [*SMALL, "local.optimizer=signs:Signs", "local.optimizer_options={scale: 0.1}"]
    loop, together = (simulate_quietly(*words, f"training={t}") for t in ("loop", "vectorised"))
    assert loop.rounds["loss"].iloc[-1] == pytest.approx(together.rounds["loss"].iloc[-1], rel=1e-3)
    local = load_config(None, words).local
    assert optimiser_of(local).scale == 0.1  # type: ignore[attr-defined]
