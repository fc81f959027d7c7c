import sys
import textwrap
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.client.loop import train
from rayfl.client.stacked import stacked_logits
from rayfl.config import LocalConfig, ModelConfig
from rayfl.errors import InputError
from rayfl.models import ZOO, FlatModel, Layout, Part, build_model

# name, input shape, classes, vocabulary, parameters by hand, float buffers (2 per channel of a batch norm)
NETS = [
    ("digits_cnn", (1, 8, 8), 10, None, (9 + 1) * 16 + (16 * 9 + 1) * 32 + (2 * 2 * 32 + 1) * 10, 0),
    ("mlp", (1, 28, 28), 10, None, (784 + 1) * 200 + (200 + 1) * 10, 0),
    (
        "thesis_fashion_mnist",
        (1, 28, 28),
        10,
        None,
        (25 + 1) * 16 + 2 * 16 + (16 * 25 + 1) * 32 + 2 * 32 + (7 * 7 * 32 + 1) * 10,
        2 * 16 + 2 * 32,
    ),
    (
        "thesis_cifar10",
        (3, 32, 32),
        10,
        None,
        (75 + 1) * 6 + (150 + 1) * 16 + 401 * 120 + 121 * 84 + 85 * 10,
        0,
    ),
    (
        "thesis_pathmnist",
        (3, 28, 28),
        9,
        None,
        (75 + 1) * 6 + (150 + 1) * 16 + 257 * 120 + 121 * 84 + 85 * 9,
        0,
    ),
    (
        "thesis_tissuemnist",
        (1, 28, 28),
        8,
        None,
        (25 + 1) * 16 + 2 * 16 + (16 * 25 + 1) * 32 + 2 * 32 + (7 * 7 * 32 + 1) * 8,
        96,
    ),
    (
        "fedac_cnn",
        (3, 32, 32),
        10,
        None,
        (75 + 1) * 32 + (800 + 1) * 64 + 4097 * 1024 + 1025 * 512 + 513 * 10,
        0,
    ),
    (
        "fedtsdp_cnn",
        (3, 32, 32),
        10,
        None,
        (27 + 1) * 32 + (288 + 1) * 64 + (14 * 14 * 64 + 1) * 512 + 513 * 10,
        0,
    ),
    (
        "resnet9",
        (3, 32, 32),
        10,
        None,
        # per convolution: 9 weights per pair of channels, and a scale and a shift per channel
        (9 * 3 + 2) * 64
        + (9 * 64 + 2) * 128
        + 2 * (9 * 128 + 2) * 128
        + (9 * 128 + 2) * 256
        + (9 * 256 + 2) * 512
        + 2 * (9 * 512 + 2) * 512
        + 513 * 10,
        2 * (64 + 3 * 128 + 256 + 3 * 512),
    ),
    (
        "resnet18",
        (3, 32, 32),
        10,
        None,
        (9 * 3 + 2) * 64
        + 4 * (9 * 64 + 2) * 64
        + sum((9 * c // 2 + 2 + 3 * (9 * c + 2) + c // 2 + 2) * c for c in (128, 256, 512))
        + 513 * 10,
        2 * (5 * 64 + 5 * (128 + 256 + 512)),
    ),
    (
        "char_lstm",
        (80,),
        80,
        80,
        80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 257 * 80,
        0,
    ),
]
SMALL = ModelConfig(name="digits_cnn")


def test_the_dense_part_is_the_run_of_fully_connected_layers_at_the_end() -> None:
    """Thesis A.2: 400 -> 120 -> 84 -> 10 after two convolutions."""
    layout = FlatModel(build_model(ModelConfig(name="thesis_cifar10"), (3, 32, 32), 10)).layout
    dense = layout.part("dense")
    assert dense.stop - dense.start == 400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
    assert dense.stop == layout.parameters
    assert layout.part(2) == slice(0, dense.start)  # the two convolutions are the first two layers
    assert layout.part(5) == layout.part("all")
    assert layout.part(0) == slice(0, 0)
    with pytest.raises(ValueError, match="5 layers"):
        layout.part(6)


def test_batch_norms_buffers_travel_with_the_backbone_and_not_with_the_head() -> None:
    layout = FlatModel(build_model(ModelConfig(name="thesis_fashion_mnist"), (1, 28, 28), 10)).layout
    assert layout.ranges("backbone") == (layout.backbone, layout.buffers)
    assert layout.ranges("head") == (layout.head,)
    assert layout.ranges("all") == (slice(0, layout.size),)
    assert layout.ranges(0) == ()
    assert layout.ranges(len(layout.layers)) == layout.ranges("all")
    assert layout.covers("all") and layout.covers(len(layout.layers))
    assert not layout.covers("backbone") and not layout.covers(len(layout.layers) - 0.5)


def sent(layout: Layout, part: Part) -> list[str]:
    """The names of the tensors that travel with a part; `ranges` must say the same."""
    ranges = layout.ranges(part)
    names = [name for name, travels in zip(layout.names, layout.tensors_in(part), strict=True) if travels]
    numbers = np.concatenate([np.arange(layout.size)[where] for where in (slice(0, 0), *ranges)])
    expected = [np.arange(layout.size)[w] for n, w in zip(layout.names, layout.slices, strict=True) if n in names]
    assert np.array_equal(numbers, np.concatenate([np.arange(0), *expected]))
    assert all(first.stop < second.start for first, second in pairwise(ranges))  # no piece could be longer
    return names


def test_half_a_layer_is_its_weight_without_its_bias() -> None:
    """FedTSDP 4.5 counts shared layers in halves: "from 4 to 3.5" in a network of four."""
    layout = FlatModel(build_model(ModelConfig(name="fedtsdp_cnn"), (1, 8, 8), 10)).layout
    assert len(layout.layers) == 4
    tensors = [f"{layer}.{tensor}" for layer, _ in layout.layers for tensor in ("weight", "bias")]
    for halves in range(9):
        assert sent(layout, halves / 2) == tensors[:halves]
    assert layout.part(3.5) == slice(0, layout.parameters - 10)  # all but the ten biases at the end
    for other in (0.25, -0.5, 4.5, float("nan")):
        with pytest.raises(ValueError, match="4 layers, whole or a half"):
            layout.part(other)


def test_half_a_layer_without_a_bias_is_all_of_it_and_half_an_lstm_layer_is_its_two_weights() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 2)
            self.lstm = nn.LSTM(2, 3)
            self.top = nn.Linear(3, 2, bias=False)

    layout = FlatModel(Recurrent()).layout
    assert sent(layout, 0.5) == sent(layout, 1) == ["embedding.weight"]
    assert sent(layout, 1.5) == ["embedding.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert len(sent(layout, 2)) == 5
    assert sent(layout, 2.5) == sent(layout, 3) == list(layout.names)
    assert layout.covers(2.5)


def test_buffers_travel_with_the_whole_layer_that_they_stand_in() -> None:
    """The personal layers of FedTSDP keep their running statistics."""
    layout = FlatModel(normed()).layout  # conv1, norm1, conv2, norm2, head
    first = ["conv1.weight", "conv1.bias", "norm1.weight"]
    assert sent(layout, 1.5) == first  # half of norm1: without its statistics
    statistics = ["norm1.running_mean", "norm1.running_var"]
    assert sent(layout, 2) == [*first, "norm1.bias", *statistics]
    assert sent(layout, 3)[-2:] == statistics
    assert sent(layout, 4)[-2:] == ["norm2.running_mean", "norm2.running_var"]
    assert sent(layout, 5) == list(layout.names)


def test_statistics_inside_the_head_stay_with_the_head_and_those_without_a_layer_go_with_the_one_before() -> None:
    plain = nn.BatchNorm1d(2, affine=False)
    head = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2), plain, nn.Linear(2, 2), head)
    layout = FlatModel(net, head="4").layout
    first = ["1.weight", "1.bias", "0.running_mean", "0.running_var", "2.running_mean", "2.running_var"]
    assert [name for name, _ in layout.layers] == ["1", "3", "4.1", "4.2"]
    assert sent(layout, 1) == first
    assert sent(layout, "backbone") == sent(layout, 2) == [*first[:2], "3.weight", "3.bias", *first[2:]]
    statistics = [f"4.{module}.running_{what}" for module in (0, 2) for what in ("mean", "var")]
    assert sent(layout, "head") == ["4.1.weight", "4.1.bias", "4.2.weight", "4.2.bias", *statistics]
    assert sent(layout, 3)[-2:] == statistics[:2]
    alone = FlatModel(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))).layout  # no backbone to go to
    assert sent(alone, "head") == list(alone.names)


def batch(shape: tuple[int, ...], vocabulary: int | None, size: int = 3) -> torch.Tensor:
    if vocabulary is not None:
        return torch.arange(size * shape[0]).reshape(size, *shape) % vocabulary
    return torch.linspace(-1, 1, size * int(np.prod(shape))).reshape(size, *shape)


def normed() -> nn.Module:
    return build_model(ModelConfig(name="thesis_fashion_mnist"), (1, 8, 8), 10)


# --- the zoo --------------------------------------------------------------------


def test_every_net_of_the_zoo_is_counted_here() -> None:
    assert {net[0] for net in NETS} == set(ZOO)


@pytest.mark.parametrize("net", NETS, ids=lambda net: net[0])
def test_a_net_has_the_parameters_counted_by_hand_and_gives_one_logit_per_class(net: tuple) -> None:
    name, shape, classes, vocabulary, parameters, buffers = net
    model = FlatModel(build_model(ModelConfig(name=name), shape, classes, vocabulary))
    assert model.layout.parameters == parameters == sum(p.numel() for p in model.module.parameters())
    assert model.layout.size == parameters + buffers
    assert model.module.training
    logits = model.module.eval()(batch(shape, vocabulary))
    assert logits.shape == (3, classes)
    last = [m for m in model.module.modules() if isinstance(m, nn.Linear)][-1]
    head = model.layout.head
    assert head.stop - head.start == (last.in_features + 1) * classes


def test_the_counts_published_elsewhere_are_met() -> None:
    counts = {net[0]: net[4] for net in NETS}
    assert counts["fedac_cnn"] == 4_778_954
    assert counts["resnet18"] == 11_173_962
    assert counts["char_lstm"] == 819_920
    assert counts["thesis_cifar10"] == 62_006


@pytest.mark.parametrize("name", [n for n, a in ZOO.items() if a.takes == "images"])
def test_image_nets_train_on_one_sample_at_their_smallest_size_and_other_channels(name: str) -> None:
    side = ZOO[name].smallest
    options = {"width": 4} if name.startswith("resnet") else {}
    module = build_model(ModelConfig(name=name, options=options), (2, side, side + 1), 7)
    logits = module(batch((2, side, side + 1), None, size=1))
    assert logits.shape == (1, 7)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_the_mlp_takes_plain_vectors() -> None:
    assert build_model(ModelConfig(name="mlp"), (5,), 3)(torch.zeros(2, 5)).shape == (2, 3)


def test_the_lstm_reads_the_whole_sequence() -> None:
    module = build_model(ModelConfig(name="char_lstm"), (6,), 9, vocabulary=9)
    text = torch.tensor([[1, 2, 3, 4, 5, 6], [8, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 0]])
    first, other_start, other_end = module(text)
    assert not torch.allclose(first, other_start, atol=1e-7)
    assert not torch.allclose(first, other_end, atol=1e-7)


def test_options_change_a_zoo_net() -> None:
    small = FlatModel(build_model(ModelConfig(name="mlp", options={"hidden": 7}), (4,), 3))
    assert small.layout.parameters == 5 * 7 + 8 * 3
    dry = build_model(ModelConfig(name="fedtsdp_cnn", options={"dropout1": 0, "dropout2": 0.0}), (1, 6, 6), 2)
    assert torch.equal(dry(torch.ones(2, 1, 6, 6)), dry(torch.ones(2, 1, 6, 6)))


def test_initial_weights_are_those_of_seed_and_index() -> None:
    def weights(seed: int, index: int = 0) -> np.ndarray:
        return FlatModel(build_model(SMALL, (1, 8, 8), 10, seed=seed, index=index)).numpy()

    assert np.array_equal(weights(3), weights(3))
    assert np.array_equal(weights(3, 2), weights(3, 2))
    assert not np.array_equal(weights(3), weights(4))
    assert not np.array_equal(weights(3, 0), weights(3, 1))


def test_building_neither_reads_nor_moves_torchs_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = FlatModel(build_model(SMALL, (1, 8, 8), 10)).numpy()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert np.array_equal(first, FlatModel(build_model(SMALL, (1, 8, 8), 10)).numpy())


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "told"),
    [
        ("thesis_cifar10", (1, 8, 8), None, ["at least 16x16", "has 8x8", "use model.name=digits_cnn"]),
        ("resnet18", (3, 16, 12), None, ["at least 16x16", "has 16x12", "digits_cnn"]),
        ("digits_cnn", (1, 3, 3), None, ["at least 4x4", "use model.name=mlp"]),
        ("digits_cnn", (64,), None, ["reads images", "(64,)", "use model.name=mlp"]),
        ("resnet9", (80,), 60, ["reads images", "text", "use model.name=char_lstm"]),
        ("mlp", (80,), 60, ["text", "use model.name=char_lstm"]),
        ("char_lstm", (1, 8, 8), None, ["reads text", "has images", "use model.name=digits_cnn"]),
        ("char_lstm", (64,), None, ["reads text", "use model.name=mlp"]),
        ("resnet_18", (3, 32, 32), None, ["did you mean 'resnet18'?", "fedtsdp_cnn", "package.module:Class"]),
    ],
)
def test_a_net_that_does_not_fit_the_data_is_told_with_the_cure(
    name: str, shape: tuple[int, ...], vocabulary: int | None, told: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        build_model(ModelConfig(name=name), shape, 10, vocabulary)
    assert f"model.name={name}" in str(error.value).replace("'", "", 2)
    assert len(error.value.lines) == 1 and "\n" not in str(error.value)
    for part in told:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hiden": 5}, ["model.options.hiden=5", "did you mean 'hidden'?"]),
        ({"hidden": 0}, ["model.options.hidden=0", "at least 1"]),
        ({"hidden": "big"}, ["model.options.hidden='big'", "whole number"]),
        ({"hidden": True}, ["model.options.hidden=True", "whole number"]),
        ({"dropout2": 1.0}, ["model.options.dropout2=1.0", "below 1"]),
    ],
)
def test_wrong_options_of_a_zoo_net_are_told(options: dict[str, object], told: list[str]) -> None:
    with pytest.raises(InputError) as error:
        build_model(ModelConfig(name="fedtsdp_cnn", options=options), (1, 28, 28), 10)
    for part in told:
        assert part in str(error.value)


def test_an_option_for_a_net_without_options_is_told() -> None:
    with pytest.raises(InputError, match=r"model.options.width=2: .* it has no options"):
        build_model(ModelConfig(name="fedac_cnn", options={"width": 2}), (1, 28, 28), 10)


# --- a user's own network -------------------------------------------------------


@pytest.fixture
def own_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_networks.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            class Plain(nn.Module):
                def __init__(self, classes, input_shape, units=5):
                    super().__init__()
                    self.one, self.two = nn.Linear(input_shape[0], units), nn.Linear(units, classes)

                def forward(self, x):
                    return self.two(self.one(x))

            class Lazy(nn.Sequential):
                def __init__(self, classes):
                    super().__init__(nn.Flatten(), nn.LazyLinear(classes))

            class UnusedLazy(Plain):
                def __init__(self, classes, input_shape):
                    super().__init__(classes, input_shape)
                    self.spare = nn.LazyLinear(3)

            class Characters(nn.Module):
                def __init__(self, vocabulary, classes):
                    super().__init__()
                    self.table, self.top = nn.Embedding(vocabulary, 2), nn.Linear(2, classes)

                def forward(self, x):
                    return self.top(self.table(x).mean(1))

            class TwoOutputs(nn.Module):
                def forward(self, x):
                    return x, x

            class Fails(nn.Module):
                def __init__(self):
                    raise RuntimeError("no luck today")

            def number():
                return 5
            """
        )
    )
    (tmp_path / "broken_networks.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "raising_networks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_networks"
    for name in ("own_networks", "broken_networks", "raising_networks"):
        sys.modules.pop(name, None)


def test_an_import_path_gets_what_its_signature_asks_for_and_its_options(own_networks: str) -> None:
    module = build_model(ModelConfig(name=f"{own_networks}:Plain", options={"units": 4}), (6,), 3)
    assert module.one.weight.shape == (4, 6)
    assert module(torch.zeros(2, 6)).shape == (2, 3)
    assert module.training
    reader = build_model(ModelConfig(name=f"{own_networks}:Characters"), (9,), 4, vocabulary=11)
    assert reader.table.weight.shape == (11, 2)


def test_an_imported_network_is_initialised_by_the_seed_and_lazy_layers_are_settled(
    own_networks: str,
) -> None:
    config = ModelConfig(name=f"{own_networks}:Lazy")
    state = torch.get_rng_state()
    first, again = (FlatModel(build_model(config, (1, 2, 3), 4, seed=5)) for _ in range(2))
    assert first.layout.parameters == 7 * 4
    assert np.array_equal(first.numpy(), again.numpy())
    assert not np.array_equal(first.numpy(), FlatModel(build_model(config, (1, 2, 3), 4, seed=6)).numpy())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("nowhere_at_all:Net", {}, ["no module 'nowhere_at_all'", "PYTHONPATH"]),
        ("own_networks.deeper:Net", {}, ["own_networks"]),
        ("broken_networks:Net", {}, ["broken_networks", "a_package_that_is_not_there"]),
        ("raising_networks:Net", {}, ["raising_networks", "ZeroDivisionError"]),
        (":Net", {}, ["not an import path", "package.module:Name"]),
        ("own_networks:Plane", {}, ["no class 'Plane'", "did you mean 'Plain'?"]),
        ("own_networks:number", {}, ["gives a int", "torch.nn.Module"]),
        ("own_networks:Plain", {"unit": 3}, ["model.options={'unit': 3}", "'unit'", "units=5"]),
        ("own_networks:Plain", {"classes": 4}, ["gives (3, 4)", "not (3, 10)"]),
        ("own_networks:Plain", {"input_shape": [5]}, ["fails on a batch of shape (3, 64)", "RuntimeError"]),
        ("own_networks:Plain", {"units": "x"}, ["cannot be built", "TypeError"]),
        ("own_networks:Fails", {}, ["cannot be built", "no luck today"]),
        ("own_networks:TwoOutputs", {}, ["gives tuple"]),
        ("own_networks:UnusedLazy", {}, ["lazy parameters spare.weight"]),
        ("own_networks:Characters", {}, ["cannot be built"]),
    ],
)
def test_faults_of_an_imported_network_are_told_in_one_line(
    own_networks: str, name: str, options: dict[str, object], told: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        build_model(ModelConfig(name=name, options=options), (64,), 10)
    assert name in str(error.value) and "\n" not in str(error.value)
    for part in told:
        assert part in str(error.value)


# --- flat vectors ---------------------------------------------------------------


def is_view(part: torch.Tensor, whole: torch.Tensor) -> bool:
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_the_vector_is_backbone_then_head_then_buffers_even_if_the_head_comes_first() -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(2)
            self.body = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(self.norm(self.body(x)))

    layout = FlatModel(HeadFirst(), head="top").layout
    assert layout.names == (
        "norm.weight",
        "norm.bias",
        "body.weight",
        "body.bias",
        "top.weight",
        "top.bias",
        "norm.running_mean",
        "norm.running_var",
    )
    assert (layout.backbone, layout.head, layout.buffers) == (slice(0, 12), slice(12, 18), slice(18, 22))
    assert (layout.parameters, layout.size) == (18, 22)
    assert layout.layers == (("norm", slice(0, 4)), ("body", slice(4, 12)), ("top", slice(12, 18)))
    assert layout.part("all") == slice(0, 18)
    assert (layout.part("backbone"), layout.part("head")) == (layout.backbone, layout.head)
    assert layout.shapes[2] == (2, 3) and layout.slices[2] == slice(4, 10)


def test_layers_follow_each_other_from_zero_to_the_last_parameter() -> None:
    layout = FlatModel(normed()).layout
    assert [name for name, _ in layout.layers] == ["conv1", "norm1", "conv2", "norm2", "head"]
    ends = [0, *(where.stop for _, where in layout.layers)]
    assert [where.start for _, where in layout.layers] == ends[:-1]
    assert ends[-1] == layout.parameters


def test_flattening_changes_nothing_in_what_the_network_computes() -> None:
    inputs = batch((1, 8, 8), None)
    plain, flat = normed(), FlatModel(normed())
    assert torch.equal(plain(inputs), flat.module(inputs))
    stored = dict(zip(flat.layout.names, flat.layout.slices, strict=True))
    for name, tensor in plain.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(tensor.reshape(-1), flat.vector[stored[name]])


@pytest.mark.parametrize("name", ["thesis_fashion_mnist", "char_lstm"])
def test_the_flat_gradient_equals_ordinary_autograd(name: str) -> None:
    shape, vocabulary = ((5,), 10) if name == "char_lstm" else ((1, 8, 8), None)
    inputs, labels = batch(shape, vocabulary), torch.tensor([1, 0, 3])
    plain = build_model(ModelConfig(name=name), shape, 10, vocabulary)
    flat = FlatModel(build_model(ModelConfig(name=name), shape, 10, vocabulary))
    nn.functional.cross_entropy(plain(inputs), labels).backward()
    nn.functional.cross_entropy(flat.module(inputs), labels).backward()
    expected = dict(plain.named_parameters())
    for tensor, where in zip(flat.layout.names, flat.layout.slices, strict=True):
        if where.stop <= flat.layout.parameters:
            assert torch.equal(flat.gradient[where], expected[tensor].grad.reshape(-1)), tensor
    assert flat.gradient.abs().sum() > 0


def test_gradients_add_up_until_cleared() -> None:
    flat = FlatModel(nn.Linear(2, 1, bias=False))
    for _ in range(2):
        flat.module(torch.tensor([[1.0, 3.0]])).sum().backward()
    assert flat.gradient.tolist() == [2.0, 6.0]
    flat.gradient.zero_()
    assert flat.module.weight.grad.tolist() == [[0.0, 0.0]]


def test_views_stay_views_through_forward_backward_steps_and_load() -> None:
    flat = FlatModel(normed())
    vector, gradient = flat.vector, flat.gradient
    for _ in range(3):
        flat.gradient.zero_()
        flat.module(batch((1, 8, 8), None)).square().sum().backward()
        with torch.no_grad():
            flat.vector[: flat.layout.parameters] -= 0.01 * flat.gradient
        flat.load(flat.numpy() * 0.5)
    assert flat.vector is vector and flat.gradient is gradient
    for name, tensor in [*flat.module.named_parameters(), *flat.module.named_buffers()]:
        if tensor.is_floating_point():
            assert is_view(tensor, vector), name
    assert all(is_view(p.grad, gradient) for p in flat.module.parameters())


def test_a_step_on_the_vector_is_a_step_of_the_network() -> None:
    flat, plain = FlatModel(normed()), normed()
    for _ in range(3):
        flat.gradient.zero_()
        flat.module(batch((1, 8, 8), None)).square().mean().backward()
        flat.vector[: flat.layout.parameters].sub_(flat.gradient, alpha=0.1)
        plain(batch((1, 8, 8), None)).square().mean().backward()
        for parameter in plain.parameters():
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    assert np.array_equal(flat.numpy(), FlatModel(plain).numpy())


def test_batch_norm_statistics_live_in_the_vector_and_move_in_training_only() -> None:
    flat = FlatModel(normed())
    before = flat.copy()
    flat.module.eval()(batch((1, 8, 8), None))
    assert torch.equal(flat.vector, before)
    flat.module.train()(batch((1, 8, 8), None) + 5)
    parameters, buffers = flat.layout.part("all"), flat.layout.buffers
    assert torch.equal(flat.vector[parameters], before[parameters])
    assert (flat.vector[buffers] != before[buffers]).float().mean() > 0.9
    assert flat.module.norm1.running_mean[0] == flat.vector[buffers][0]


def test_whole_number_and_unsaved_buffers_are_left_out() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(2, 1)
            self.register_buffer("count", torch.tensor(3))
            self.register_buffer("scratch", torch.zeros(5), persistent=False)
            self.register_buffer("scale", torch.ones(4))

    layout = FlatModel(Odd()).layout
    assert layout.names == ("top.weight", "top.bias", "scale")
    assert layout.size == 3 + 4


def test_a_model_survives_the_way_to_numpy_and_back() -> None:
    source = FlatModel(build_model(SMALL, (1, 8, 8), 10, seed=1))
    target = FlatModel(build_model(SMALL, (1, 8, 8), 10, seed=2))
    inputs = batch((1, 8, 8), None)
    assert not torch.equal(source.module(inputs), target.module(inputs))
    target.load(source.numpy())
    assert torch.equal(source.module(inputs), target.module(inputs))
    assert source.numpy().dtype == np.float32
    target.load(FlatModel(build_model(SMALL, (1, 8, 8), 10, seed=3)).copy())
    assert not torch.equal(source.module(inputs), target.module(inputs))


def test_load_takes_read_only_arrays_without_a_warning_and_never_aliases() -> None:
    flat = FlatModel(nn.Linear(2, 1))
    shared = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    shared.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat.load(shared)
    flat.vector += 1
    assert shared.tolist() == [1.0, 2.0, 3.0]
    tensor = torch.tensor([4.0, 5.0, 6.0])
    flat.load(tensor)
    flat.vector.zero_()
    assert tensor.tolist() == [4.0, 5.0, 6.0]


def test_copies_do_not_follow_the_model() -> None:
    flat = FlatModel(nn.Linear(2, 1))
    flat.load(np.ones(3))
    copy, array = flat.copy(), flat.numpy()
    flat.vector.zero_()
    assert copy.tolist() == array.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("wrong", [np.zeros(2), np.zeros(4), np.zeros((3, 1)), torch.zeros(1)])
def test_a_vector_of_the_wrong_length_is_refused(wrong: np.ndarray | torch.Tensor) -> None:
    with pytest.raises(ValueError, match="no model of 3 numbers"):
        FlatModel(nn.Linear(2, 1)).load(wrong)


def test_features_are_what_the_head_gets() -> None:
    flat = FlatModel(build_model(ModelConfig(name="thesis_cifar10"), (3, 32, 32), 10))
    inputs = batch((3, 32, 32), None)
    features, logits = flat.features(inputs)
    assert features.shape == (3, 84)
    assert torch.equal(logits, flat.module(inputs))
    assert torch.equal(flat.module.head(features), logits)
    features.sum().backward()
    assert flat.gradient[flat.layout.backbone].abs().sum() > 0
    assert flat.gradient[flat.layout.head].abs().sum() == 0
    assert not flat.module.head._forward_pre_hooks


def test_features_of_a_head_that_is_never_called_are_refused() -> None:
    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    with pytest.raises(InputError, match=r"model.head=spare is called 0 times"):
        FlatModel(Bypass()).features(torch.zeros(1, 2))


def test_the_head_can_be_any_module_and_is_the_last_dense_layer_otherwise() -> None:
    module = build_model(ModelConfig(name="resnet9", options={"width": 2}), (1, 16, 16), 3)
    assert FlatModel(module).layout.head.stop - FlatModel(module).layout.head.start == 17 * 3
    stage = FlatModel(module, head="stage3").layout
    named = [n for n, w in zip(stage.names, stage.slices, strict=True) if stage.head.start <= w.start < stage.head.stop]
    assert named and all(n.startswith("stage3.") for n in named)
    assert stage.names[stage.slices.index(next(s for s in stage.slices if s.stop == stage.head.start))] == "head.bias"


def test_a_network_that_is_a_single_layer_is_all_head() -> None:
    layout = FlatModel(nn.Linear(3, 2)).layout
    assert (layout.backbone, layout.head) == (slice(0, 0), slice(0, 8))


class Tied(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.top = nn.Linear(3, 5, bias=bias)
        self.top.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(x).mean(1))


def test_a_shared_parameter_is_counted_once_and_belongs_to_the_backbone() -> None:
    flat = FlatModel(Tied())
    assert flat.layout.names == ("table.weight", "top.bias")
    assert (flat.layout.backbone, flat.layout.head) == (slice(0, 15), slice(15, 20))
    flat.load(np.arange(20))
    assert flat.module.top.weight is flat.module.table.weight
    assert flat.module.top.weight[4, 2] == 14
    plain = Tied()
    plain.load_state_dict(flat.module.state_dict())
    inputs = torch.tensor([[0, 1], [3, 3]])
    for module in (plain, flat.module):
        nn.functional.cross_entropy(module(inputs), torch.tensor([2, 4])).backward()
    assert torch.allclose(flat.gradient[:15], plain.table.weight.grad.reshape(-1))


@pytest.mark.parametrize(
    ("module", "head", "told"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()), None, ["model.head is missing", "nn.Linear", "0"]),
        (normed(), "hed", ["model.head='hed'", "did you mean 'head'?", "conv1"]),
        (normed(), "", ["model.head=''"]),
        (normed(), "relu1", ["model.head=relu1 has no parameters", "conv1"]),
        (Tied(bias=False), "top", ["shares all its parameters"]),
        (nn.Sequential(nn.Linear(1, 1, dtype=torch.complex64)), None, ["not real numbers", "0.weight"]),
    ],
)
def test_a_head_that_cannot_be_is_told(module: nn.Module, head: str | None, told: list[str]) -> None:
    with pytest.raises(InputError) as error:
        FlatModel(module, head)
    for part in told:
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["digits_cnn", "thesis_fashion_mnist", "thesis_cifar10", "fedac_cnn"])
def test_weights_with_the_channels_last_are_the_same_network_trained_and_stacked(name: str) -> None:
    """Only where numbers lie in the vector differs: logits, a step of training and stacked passes agree."""
    shape = (3, 16, 16)
    inputs = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    found = []
    for last in (False, True):
        model = FlatModel(build_model(ModelConfig(name=name), shape, 10, None, seed=0), channels_last=last)
        weight = next(p for p in model.module.parameters() if p.dim() == 4 and p.shape[1] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last) == last
        stacked = stacked_logits(model, model.vector[None] * torch.tensor([[1.0], [0.5]]), inputs)
        train(model, [(inputs, labels)] * 2, LocalConfig(steps=2, momentum=0.9), lr=0.01)
        found.append((stacked, torch.cat([t.reshape(-1) for t in model.module.parameters()]).detach()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    start = torch.cat([t.detach().reshape(-1) for t in build_model(ModelConfig(name=name), shape, 10).parameters()])
    # By length: where two numbers of a map are nearly equal, max pooling may pass the gradient to the other one.
    assert (found[1][1] - found[0][1]).norm() < 0.02 * (found[0][1] - start).norm()
