"""The vectorised trainer: what the loop gives for each client, and the same bits in whatever company."""

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rayfl.client import loop
from rayfl.client.bound import Bound, Partner
from rayfl.client.choice import faster_together, vectorisable
from rayfl.client.objective import FeatureContrast, Linear, ParameterContrast, Proximal
from rayfl.client.training_job import TrainingJob
from rayfl.client.vectorised import DENSE_GROUP, GROUP, train_together
from rayfl.config import LocalConfig, ModelConfig
from rayfl.models import ZOO, FlatModel, Part, build_model

CLASSES, VOCABULARY, LR = 5, 11, 0.05


def of_the_zoo(name: str) -> FlatModel:
    architecture = ZOO[name]
    text = architecture.takes == "text"
    side = max(architecture.smallest, 8)
    options = {"width": 8} if name.startswith("resnet") else {"hidden": 16} if text else {}
    config = ModelConfig(name=name, options=options)
    shape = (6,) if text else (1, side, side)
    return FlatModel(build_model(config, shape, CLASSES, VOCABULARY if text else None, seed=1))


def shape_for(name: str) -> tuple[int, ...]:
    return (6,) if ZOO[name].takes == "text" else (1, *[max(ZOO[name].smallest, 8)] * 2)


def samples(count: int, shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images; or, where the shape is that of a text, characters."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    if shape == (6,):
        return torch.randint(0, VOCABULARY, (count, *shape), generator=generator), labels
    return torch.randn(count, *shape, generator=generator), labels


def jobs(model: FlatModel, shape: tuple[int, ...], sizes: list[list[int]], **terms: Any) -> list[TrainingJob]:
    """Return one job per list of batch sizes, all with different starts, data and seeds."""
    generator = torch.Generator().manual_seed(2)
    starts = model.vector * (1 + 0.5 * torch.rand(len(sizes), model.layout.size, generator=generator))
    return [
        TrainingJob(start, [samples(n, shape, 100 * at + step) for step, n in enumerate(each)], seed=at, **terms)
        for at, (start, each) in enumerate(zip(starts, sizes, strict=True))
    ]


def by_the_loop(model: FlatModel, job: TrainingJob, local: LocalConfig) -> torch.Tensor:
    before = model.copy()
    with torch.random.fork_rng(devices=[]):
        trained = loop.train_alone(model, job, local, LR).clone()
    model.load(before)
    return trained


def in_double(model: FlatModel) -> FlatModel:
    return FlatModel(copy.deepcopy(model.module), dtype=torch.float64)


def trainee_in_double(job: TrainingJob) -> TrainingJob:
    """Return it with every float tensor in it, also those of its terms, in double precision."""

    def doubled(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return thing.double() if thing.is_floating_point() else thing
        if isinstance(thing, list | tuple):
            return type(thing)(doubled(each) for each in thing)
        if is_dataclass(thing) and not isinstance(thing, type):
            return replace(thing, **{field.name: doubled(getattr(thing, field.name)) for field in fields(thing)})
        return thing

    return doubled(job)


def assert_as_the_loop(model: FlatModel, everyone: list[TrainingJob], local: LocalConfig) -> None:
    """In double precision: the same mathematics, whatever a CPU's own order of summing makes of it in 32 bits."""
    model, everyone = in_double(model), [trainee_in_double(job) for job in everyone]
    together = train_together(model, everyone, local, LR)
    assert len(together) == len(everyone)
    for job, got in zip(everyone, together, strict=True):
        expected = by_the_loop(model, job, local)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)
        assert job.batches == [] or (expected - job.start).abs().max() > 1e-3  # else it would say nothing


RAGGED = [[6, 6, 4], [6, 6], [5, 6, 2], [3, 3, 3]]


@pytest.mark.parametrize("name", ZOO)
def test_every_network_of_the_zoo_is_trained_as_the_loop_trains_it(name: str) -> None:
    """Clients with fewer samples than a batch, and with other numbers of steps; batch norm, dropout, LSTM."""
    model = of_the_zoo(name)
    assert vectorisable(model, samples(6, shape_for(name), 0)[0]) is None
    assert_as_the_loop(model, jobs(model, shape_for(name), RAGGED), LocalConfig(steps=3, batch_size=6))


@pytest.mark.parametrize("name", ZOO)
def test_no_bit_of_a_result_depends_on_the_company_or_the_place_in_it(name: str) -> None:
    model, local = of_the_zoo(name), LocalConfig(steps=2, batch_size=6, momentum=0.9)
    one, *others = jobs(model, shape_for(name), [[6, 5], [6, 6], [6, 4, 6], *[[6]] * GROUP])
    (alone,) = train_together(model, [one], local, LR)
    for company in ([*others[:2], one], [one, *others], [*others, one, one]):
        together = train_together(model, company, local, LR)
        for job, got in zip(company, together, strict=True):
            assert job is not one or torch.equal(got, alone)


class Own(nn.Module):
    """A user's network: frozen weights, a constant, noise by a function, samples that see each other, tied weights."""

    constant: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 7), nn.Linear(7, 7), nn.Linear(7, CLASSES)
        self.again = nn.Linear(7, 7)
        self.again.weight = self.second.weight
        self.second.weight.requires_grad_(False)
        self.register_buffer("constant", torch.tensor(0.5), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.first(inputs.flatten(1)[:, :8]).tanh(), 0.3, self.training)
        hidden = self.again(self.second(hidden) + self.constant * (hidden - hidden.mean(0)))
        return self.head(hidden.relu())


def layers(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*modules, nn.Flatten(), nn.LazyLinear(CLASSES))


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.again = self.first

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.again(self.first(inputs[:, 0, 0]).tanh()))


class Recurrent(nn.Module):
    """Three layers of LSTM, time first, no bias, and all three of its outputs used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 7, num_layers=3, bias=False)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states, (hidden, cell) = self.lstm(inputs[:, 0].transpose(0, 1))
        return self.head(states.mean(0) + hidden[0] + cell[1])


NETWORKS = {
    "user's own": Own,
    "twice": Twice,
    "recurrent": Recurrent,
    "odd sizes": layers(nn.Flatten(), nn.Linear(64, 7), nn.Sigmoid(), nn.Linear(7, 3), nn.GELU()),
    "dropout": layers(nn.Dropout(0.2), nn.Conv2d(1, 3, 3), nn.Dropout(0.5, inplace=True), nn.ReLU()),
    "batch norm": layers(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Conv2d(3, 2, 3)),
    "other norms": layers(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.LayerNorm(6), nn.InstanceNorm2d(4)),
}


def network(kind: str) -> FlatModel:
    torch.manual_seed(0)
    module = NETWORKS[kind]()
    module(torch.zeros(2, 1, 8, 8))  # settles the lazy layer
    return FlatModel(module)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_other_layers_momentum_and_weight_decay_are_as_in_the_loop(kind: str, momentum: float) -> None:
    model = network(kind)
    assert vectorisable(model, samples(6, (1, 8, 8), 0)[0]) is None
    local = LocalConfig(steps=3, batch_size=6, momentum=momentum, weight_decay=0.1)
    assert_as_the_loop(model, jobs(model, (1, 8, 8), [*RAGGED, []]), local)


def terms_of(kind: str, model: FlatModel, at: int) -> dict[str, Any]:
    """Return the terms of client `at`; every third has none."""
    generator = torch.Generator().manual_seed(at)
    models = model.vector * (1 + torch.rand(3, model.layout.size, generator=generator))
    if at % 3 == 2:
        return {}
    if kind == "pulls":
        parts: list[Part] = ["all", "head", "backbone", 1]
        pulls = [Bound(Proximal(None, 0.1 * (i + 1), i == 3), models[:1], part=p) for i, p in enumerate(parts)]
        return {"terms": [*pulls, Bound(Linear(None, 0.01), models[1:2])]}
    if kind == "partner":
        return {"partner": Partner(models[0])}
    on_parameters = Bound(ParameterContrast(None, 0.5, 2.0), models, at % 2, "dense")
    on_samples = Bound(FeatureContrast(None, 0.5, 0.8), models, at % 2)
    contrasts = {"parameters": [on_parameters], "representations": [on_samples]}
    return {"terms": contrasts.get(kind, [on_samples, on_parameters])}


ALL = ["pulls", "partner", "parameters", "representations", "both contrasts"]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("terms", ["pulls", "partner", "both contrasts"])
def test_odd_sizes_do_not_let_the_place_into_the_bits(kind: str, terms: str) -> None:
    """MKL sums in an order that depends on where its operands lie in memory; see `_linear`."""
    model, local = network(kind), LocalConfig(steps=2, batch_size=7)
    job = replace(jobs(model, (1, 8, 8), [[7, 7]])[0], **terms_of(terms, model, 0))
    first, *rest = train_together(model, [job] * GROUP, local, 10.0)
    assert first.isfinite().all()
    assert all(torch.equal(each, first) for each in rest)


@pytest.mark.parametrize("terms", ALL)
@pytest.mark.parametrize("name", ["mlp", "odd sizes", "digits_cnn", "thesis_cifar10", "thesis_fashion_mnist"])
def test_the_bits_of_plain_networks_do_not_depend_on_the_number_of_rows(name: str, terms: str) -> None:
    """Nor on clients that have fewer steps and finish early, nor on batches that are not full."""
    torch.manual_seed(0)
    odd = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 3), nn.Dropout(), nn.Linear(3, CLASSES))
    model, shape = (FlatModel(odd), (1, 8, 8)) if name == "odd sizes" else (of_the_zoo(name), shape_for(name))
    steps = [[7, 7, 5], [7], [7, 7]]
    everyone = [
        replace(job, **terms_of(terms, model, 3 * at))
        for at, job in enumerate(jobs(model, shape, [steps[at % 3] for at in range(DENSE_GROUP + 5)]))
    ]
    local = LocalConfig(steps=3, batch_size=7, weight_decay=0.1)
    all_of_them = train_together(model, everyone, local, LR)
    for count in (1, 2, 3, 5, 8, DENSE_GROUP):
        for got, expected in zip(train_together(model, everyone[:count], local, LR), all_of_them, strict=False):
            assert torch.equal(got, expected)


class Shapes(TorchDispatchMode):
    """Notes with which shapes the libraries are called whose order of summing may depend on them."""

    KERNELS: ClassVar = ("convolution", "convolution_backward", "bmm", "baddbmm", "native_batch_norm", "addmm", "mm")

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name.removesuffix("_backward") in self.KERNELS or name in self.KERNELS:
            layout = [(tuple(a.shape), a.stride()) for a in args if isinstance(a, torch.Tensor)]
            self.seen.add((name, *layout))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("terms", ["pulls", "partner", "both contrasts"])
@pytest.mark.parametrize("name", [*ZOO, *NETWORKS])
def test_no_kernel_is_called_with_shapes_that_depend_on_the_company(name: str, terms: str) -> None:
    """So a client's bits do not depend on it either, on whatever CPU: this is what the promise rests on."""
    model, shape = (of_the_zoo(name), shape_for(name)) if name in ZOO else (network(name), (1, 8, 8))
    local = LocalConfig(steps=2, batch_size=6, momentum=0.9)
    sizes = [[6, 4], [6, 6], [3, 3]]
    everyone = [
        replace(job, **terms_of(terms, model, 0))
        for job in jobs(model, shape, [sizes[at % 3] for at in range(2 * GROUP + 1)])
    ]
    seen = []
    for count in (3, 4, 7, 2 * GROUP + 1):
        with Shapes() as shapes:
            train_together(model, everyone[:count], local, LR)
        seen.append(shapes.seen)
    assert seen[0]
    assert all(shapes == seen[0] for shapes in seen)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("network_kind", ["user's own", "batch norm", "dropout"])
def test_every_term_is_that_of_the_loop_also_where_some_clients_have_none(kind: str, network_kind: str) -> None:
    model = network(network_kind)
    plain = jobs(model, (1, 8, 8), [[6, 6, 4], [6, 6], [6, 4], [3, 6, 6]])
    with_terms = [replace(job, **terms_of(kind, model, at)) for at, job in enumerate(plain)]
    local = LocalConfig(steps=3, batch_size=6, momentum=0.5)
    assert_as_the_loop(model, with_terms, local)
    moved = train_together(model, with_terms, local, LR)
    unmoved = train_together(model, plain, local, LR)
    differences = [(a - b).abs().max().item() for a, b in zip(moved, unmoved, strict=True)]
    assert differences[2] == 0
    assert min(differences[:2]) > 1e-4


@pytest.mark.parametrize("kind", ["partner", "parameters", "representations"])
def test_the_bits_are_the_same_whether_the_others_have_the_same_models_or_their_own(kind: str) -> None:
    model, local = network("dropout"), LocalConfig(steps=2, batch_size=6)
    plain = jobs(model, (1, 8, 8), [[6, 6]] * 3)
    terms = [terms_of(kind, model, at) for at in (0, 1, 3)]
    one, same, other = (replace(t, **own) for t, own in zip(plain, [terms[0], terms[0], terms[2]], strict=True))
    shared = train_together(model, [one, same], local, LR)[0]
    apart = train_together(model, [other, one], local, LR)[1]
    assert torch.equal(shared, apart)


def test_frozen_weights_are_moved_by_weight_decay_and_pulls_only() -> None:
    model = network("user's own")
    where = model.layout.slices[model.layout.names.index("second.weight")]
    job = jobs(model, (1, 8, 8), [[6, 6]])[0]
    (plain,) = train_together(model, [job], LocalConfig(steps=2, batch_size=6), LR)
    assert torch.equal(plain[where], job.start[where])
    (decayed,) = train_together(model, [job], LocalConfig(steps=2, batch_size=6, weight_decay=0.1), LR)
    torch.testing.assert_close(decayed[where], job.start[where] * (1 - LR * 0.1) ** 2)


def test_training_changes_nothing_but_what_it_returns() -> None:
    model = network("batch norm")
    plain = jobs(model, (1, 8, 8), [[6, 6], [6, 4]])
    everyone = [replace(t, **terms_of("both contrasts", model, 0)) for t in plain]
    before = model.copy(), [t.start.clone() for t in everyone], [t.terms[0].vectors.clone() for t in everyone]
    counters = [b.clone() for b in model.module.buffers()]
    state = torch.get_rng_state()
    train_together(model, everyone, LocalConfig(steps=2, batch_size=6), LR)
    assert vectorisable(model, samples(6, (1, 8, 8), 0)[0]) is None
    assert torch.equal(model.vector, before[0])
    assert all(torch.equal(t.start, b) for t, b in zip(everyone, before[1], strict=True))
    assert all(torch.equal(t.terms[0].vectors, b) for t, b in zip(everyone, before[2], strict=True))
    assert all(torch.equal(b, c) for b, c in zip(model.module.buffers(), counters, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in model.module.modules())


class Refused(nn.Module):
    """A linear layer, after something that cannot be done for several clients as for one."""

    def __init__(self, what: Callable[[torch.Tensor], torch.Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.what, self.modules_in_it, self.head = what, nn.ModuleList(modules), nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.what(inputs[:, 0, 0]))


NOISE = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: Refused(lambda x: x * x.abs().max().item()), "item"),
        (lambda: Refused(lambda x: x if x.sum() > 0 else -x), "control flow"),
        (lambda: Refused(lambda x: x + torch.rand_like(x)), "random"),
        (lambda: Refused(lambda x: x + torch.from_numpy(NOISE.normal(size=x.shape)).float()), "random"),
        (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, CLASSES)), "1.num_batch"),
        (lambda: nn.Sequential(nn.Dropout2d(), nn.Flatten(), nn.Linear(64, CLASSES)), "random"),
        (lambda: Refused(lambda x: F.dropout(x.t(), 0.5).t()), "differs from that of the loop"),
    ],
)
def test_what_cannot_be_done_together_is_refused_with_a_reason(module: Callable[[], nn.Module], reason: str) -> None:
    model = FlatModel(module())
    before = model.copy()
    found = vectorisable(model, samples(6, (1, 8, 8), 0)[0])
    assert found is not None
    assert reason in found
    assert torch.equal(model.vector, before)


@pytest.mark.parametrize("lstm", [{"bidirectional": True}, {"dropout": 0.5, "num_layers": 2}, {"proj_size": 3}])
def test_an_lstm_that_is_not_written_out_is_refused(lstm: dict[str, Any]) -> None:
    module = Recurrent()
    module.lstm = nn.LSTM(8, 7, **({"num_layers": 3} | lstm))
    width = 14 if "bidirectional" in lstm else 3 if "proj_size" in lstm else 7
    module.head = nn.Linear(width, CLASSES)
    assert "LSTM with" in str(vectorisable(FlatModel(module), samples(6, (1, 8, 8), 0)[0]))


@pytest.mark.parametrize(
    ("name", "options", "shape", "batch_size", "kind", "expected"),
    [
        ("mlp", {}, (1, 8, 8), 32, "cpu AVX2", True),
        ("mlp", {}, (1, 8, 8), 32, "cpu DEFAULT", True),
        ("mlp", {}, (1, 28, 28), 32, "cpu AVX512", False),
        ("mlp", {}, (1, 8, 8), 1000, "cpu AVX512", False),
        ("digits_cnn", {}, (1, 8, 8), 10, "cpu AVX512", True),
        ("digits_cnn", {}, (1, 8, 8), 10, "cpu AVX2", True),
        ("digits_cnn", {}, (1, 8, 8), 10, "cpu DEFAULT", False),
        ("digits_cnn", {"channels": 64}, (1, 8, 8), 10, "cpu AVX512", True),
        ("digits_cnn", {"channels": 128}, (1, 8, 8), 10, "cpu AVX512", False),
        ("digits_cnn", {"channels": 128}, (1, 8, 8), 10, "cuda:0 DEFAULT", True),
        ("thesis_fashion_mnist", {}, (1, 28, 28), 10, "cpu AVX2", True),
        ("thesis_cifar10", {}, (3, 32, 32), 32, "cpu AVX2", True),
        ("thesis_cifar10", {}, (3, 32, 32), 32, "cpu AVX512", True),
        ("fedac_cnn", {}, (3, 32, 32), 32, "cpu AVX512", False),
        ("resnet9", {"width": 4}, (3, 32, 32), 32, "cpu AVX512", False),
        ("resnet18", {}, (3, 32, 32), 10, "cuda AVX512", False),
        ("char_lstm", {}, (6,), 10, "cuda AVX512", False),
    ],
)
def test_auto_trains_together_what_was_measured_to_be_faster(
    name: str, options: dict[str, int], shape: tuple[int, ...], batch_size: int, kind: str, expected: bool
) -> None:
    vocabulary = VOCABULARY if ZOO[name].takes == "text" else None
    model = FlatModel(build_model(ModelConfig(name=name, options=options), shape, 10, vocabulary))
    assert faster_together(model, batch_size, *kind.split()) == expected
