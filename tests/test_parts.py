"""The parts of composed partitions, each on its own: worked out by hand, and the same for every batch."""

import doctest
import importlib
import json
import pkgutil
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from rayfl.client.seen import SeenInputs
from rayfl.data import Dataset, Partition, Transform
from rayfl.data.partition import parts
from rayfl.data.partition.parts.concept import LabelPermutation, Swap
from rayfl.data.partition.parts.features import (
    Blur,
    Brightness,
    Channels,
    Contrast,
    Feature,
    Inversion,
    Noise,
    PixelPermutation,
    Rotation,
    Saturation,
)
from rayfl.data.partition.parts.quantity import Lognormal, PowerLaw
from rayfl.data.partition.plain import plain_transform, read_transform
from rayfl.errors import InputError

MODULES = [
    module.name
    for module in pkgutil.walk_packages(parts.__path__, f"{parts.__name__}.")
    if not module.ispkg and module.name.count(".") > parts.__name__.count(".") + 1
]


@pytest.mark.parametrize("name", MODULES, ids=lambda name: ".".join(name.split(".")[-2:]))
def test_the_example_in_the_docstring_of_a_part_runs(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    base = name.split(".")[-1] in ("feature", "concept", "quantity", "drawn")
    assert found.failed == 0
    assert found.attempted > 0 or base


PINNED = [
    "0a85e7e6",
    "dab189fb",
    "b6260e80",
    "9722494e",
    "da1db5c2",
    "5dc18055",
    "ef22dc4c",
    "26790d78",
    "1ad344a1",
    "4cbf76ec",
    "bb28ec8a",
]


def images(count: int = 6, channels: int = 3, side: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, channels, side, side)).astype(np.uint8)


STEPS: list[Feature] = [
    Rotation(90.0),
    Rotation(37.5),
    Blur(0.7),
    Blur(2.5),
    Noise(30.0, seed=3),
    Contrast(0.4),
    Brightness(-50.0),
    Saturation(2.0),
    Channels((1, 2, 0)),
    Inversion(),
    PixelPermutation(seed=4),
]


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_what_becomes_of_an_image_does_not_depend_on_the_batch(step: Feature) -> None:
    raw, samples = images(), np.array([7, 3, 100_000, 12, 5, 7])
    before = raw.copy()
    together = step.apply(raw, samples)
    assert together.dtype == np.uint8 and together.shape == raw.shape
    assert np.array_equal(raw, before)
    alone = [step.apply(raw[i : i + 1], samples[i : i + 1])[0] for i in range(len(raw))]
    assert np.array_equal(together, np.stack(alone))
    assert not np.array_equal(together, raw)


@pytest.mark.parametrize(
    "step", [Rotation(0), Rotation(-360), Blur(0), Noise(0), Contrast(1), Brightness(0.3)], ids=repr
)
def test_a_part_that_does_nothing_says_so(step: Feature) -> None:
    assert step.nothing
    assert np.array_equal(step.apply(images(), np.arange(6)), images())


def test_bits_of_features_are_the_same_on_every_machine() -> None:
    digests = [blake2b(step.apply(images(), np.arange(6)).tobytes(), digest_size=4).hexdigest() for step in STEPS]
    assert digests == PINNED


def test_noise_is_normal_of_the_deviation_asked_for() -> None:
    grey = np.full((500, 1, 28, 28), 128, np.uint8)
    noise = Noise(20, seed=1).apply(grey, np.arange(500)).astype(float) - 128
    assert abs(noise.mean()) < 0.15
    assert noise.std() == pytest.approx(20, rel=0.01)
    assert (np.abs(noise) > 40).mean() == pytest.approx(0.0431, abs=0.004)  # beyond 40.5 in whole numbers
    pixels = noise.reshape(500, -1)
    assert np.abs(np.corrcoef(pixels[:, :20].T) - np.eye(20)).max() < 0.2
    assert np.abs(np.corrcoef(pixels[:20]) - np.eye(20)).max() < 0.2


def test_noise_on_vectors_is_in_their_units() -> None:
    vectors = np.zeros((2000, 30), np.float32)
    noise = Noise(0.5, seed=1).apply(vectors, np.arange(2000))
    assert noise.dtype == np.float32
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    assert not np.array_equal(noise, Noise(0.5, seed=2).apply(vectors, np.arange(2000)))


def test_blur_leaves_even_images_as_they_are_and_keeps_the_sum() -> None:
    even = np.full((1, 1, 6, 6), 201, np.uint8)
    assert np.array_equal(Blur(1.5).apply(even, np.array([0])), even)
    dot = np.zeros((1, 1, 21, 21), np.uint8)
    dot[0, 0, 10, 10] = 255
    blurred = Blur(1.0).apply(dot, np.array([0]))
    assert np.abs(blurred - np.swapaxes(blurred, 2, 3).astype(int)).max() <= 1
    assert blurred[0, 0, 10, 10] == 41  # 255 / (2 pi)
    assert int(blurred.sum()) == pytest.approx(255, abs=10)


def test_sizes_follow_the_law_that_was_asked_for() -> None:
    rng = np.random.default_rng(0)
    logs = np.log(Lognormal(sigma=0.5).sizes(4000, 4_000_000, rng))
    assert logs.std() == pytest.approx(0.5, rel=0.05)
    falling = np.sort(PowerLaw(exponent=1.0).sizes(50, 100_000, rng))[::-1]
    expected = 100_000 / np.arange(1, 51) / (1 / np.arange(1, 51)).sum()
    assert np.abs(falling - expected).max() <= 1
    assert Lognormal(sigma=3.0, least=7, mean=20).sizes(100, 10_000, rng).sum() == 2000
    assert Lognormal(sigma=3.0, least=7, mean=20).sizes(100, 10_000, rng).min() == 7


def test_r_of_c_labels_change_and_each_for_another() -> None:
    for seed in range(20):
        order = LabelPermutation(labels=4).order(9, np.random.default_rng(seed))
        assert (order != np.arange(9)).sum() == 4
        assert sorted(order) == list(range(9))
    swapped = Swap(random=2).order(9, np.random.default_rng(0))
    assert (swapped != np.arange(9)).sum() == 4
    assert np.array_equal(swapped[swapped], np.arange(9))


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_transform_as_plain_data_reads_back_as_the_same(step: Feature) -> None:
    transform = Transform(labels=(1, 0, 2), steps=(step, Inversion()))
    text = json.dumps(plain_transform(transform))
    assert read_transform(json.loads(text)) == transform
    assert repr(read_transform(json.loads(text))) == repr(transform)


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {"turn": 1},
        {"turns": 1.5},
        {"turns": True},
        {"invert": 1},
        {"degrees": 1e9},
        {"degrees": float("nan")},
        {"labels": [0, 0]},
        {"labels": "01"},
        {"steps": {}},
        {"steps": [{"kind": "rotation"}]},
        {"steps": [{"kind": "rotation", "angle": [1, 2]}]},
        {"steps": [{"kind": "rotation", "angle": 1e400}]},
        {"steps": [{"kind": "noise", "std": 3}]},
        {"steps": [{"kind": "noise", "std": 3, "seed": -1}]},
        {"steps": [{"kind": "blur", "sigma": 1e6}]},
        {"steps": [{"kind": "no_such"}]},
        {"steps": [{"kind": "inversion", "by": "client"}]},
    ],
    ids=str,
)
def test_plain_data_that_are_no_transform_are_refused(plain: Any) -> None:
    with pytest.raises(ValueError):
        read_transform(plain)


def test_code_in_plain_data_is_imported_only_if_it_is_named() -> None:
    plain = {"steps": [{"kind": "numpy:flip", "options": {"axis": 3}}]}
    with pytest.raises(InputError, match=r"names code to be imported, numpy:flip"):
        read_transform(plain)
    flipped = read_transform(plain, ["numpy:flip"]).apply(images(), np.arange(6))
    assert np.array_equal(flipped, images()[..., ::-1])


def test_inputs_that_are_kept_are_those_that_are_made() -> None:
    raw = images(60, channels=1)
    data = Dataset(
        raw, np.zeros(60, np.uint8), 2, "image", np.zeros(60, bool), np.zeros(1, np.float32), np.ones(1, np.float32)
    )
    noisy = Transform(steps=(Noise(25, seed=1), Blur(0.6)))
    offsets = np.array([0, 20, 40])
    partition = Partition(
        *(np.arange(40), offsets),
        *(np.arange(40, 60), offsets // 2),
        *(np.zeros(0, int), offsets * 0),
        np.zeros(0, int),
        transforms=(noisy,),
        transform_of=np.zeros(2, int),
    )
    most = 20 * 65 + 10 * 65  # one client's training samples, and somebody's test samples
    seen = SeenInputs(data, partition, most)
    rng = np.random.default_rng(0)
    for _ in range(30):
        client = int(rng.integers(2))
        split = partition.train_of(client) if rng.random() < 0.6 else partition.test_of(client)
        samples = rng.choice(split, size=7)
        assert np.array_equal(seen.inputs(client, samples, noisy), noisy.apply(raw[samples], samples))
        assert 0 < seen.bytes <= most
    stranger = np.array([3, 59])
    assert np.array_equal(seen.inputs(0, stranger, noisy), noisy.apply(raw[stranger], stranger))
    plain = Transform(steps=(Inversion(),))
    assert np.array_equal(seen.inputs(0, np.array([3, 1]), plain), ~raw[[3, 1]])
