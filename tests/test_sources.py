"""Sources: every kind of file becomes the same compact arrays, and every fault one line with its cure."""

import os
import string
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from rayfl.config import data_config, partition_config
from rayfl.data import Dataset, Transform, make_partition
from rayfl.data.dataset import rotated
from rayfl.data.sources import load_dataset
from rayfl.data.sources.files import data_root
from rayfl.errors import InputError

needs_data = pytest.mark.skipif(
    "RAYFL_DATA" not in os.environ, reason="set RAYFL_DATA to a folder with the real data sets to run this"
)


def load(source: str, path: Path | None = None, column: str | None = None, **keys: Any) -> Dataset:
    config = data_config(source=source, path=None if path is None else str(path), **keys)
    return load_dataset(config, seed=0, column=column)


def fault(*args: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as told:
        load(*args, **keys)
    message = str(told.value)
    assert "\n" not in message
    assert "data." in message or "partition." in message
    return message


def read_only(dataset: Dataset) -> Dataset:
    for value in vars(dataset).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return dataset


def tiny_images() -> Dataset:
    """Two images of 2 x 2 pixels, not normalised."""
    return read_only(
        Dataset(
            inputs=np.array([[[[0, 1], [2, 3]]], [[[10, 20], [30, 40]]]], np.uint8),
            labels=np.array([0, 2], np.uint8),
            classes=3,
            kind="image",
            is_test=np.zeros(2, bool),
            shift=np.zeros(1, np.float32),
            scale=np.ones(1, np.float32),
        )
    )


# --- batches


def test_a_quarter_turn_moves_the_right_pixels() -> None:
    inputs, labels = tiny_images().batch(np.array([1, 0]), Transform(turns=1))
    assert inputs.tolist() == [[[[20, 40], [10, 30]]], [[[1, 3], [0, 2]]]]
    assert labels.tolist() == [2, 0]
    assert inputs.is_contiguous() and inputs.dtype == torch.float32 and labels.dtype == torch.int64


def test_inversion_and_new_labels_act_on_raw_values() -> None:
    inputs, labels = tiny_images().batch([0, 1], Transform(invert=True, labels=(1, 2, 0)))
    assert inputs[0].tolist() == [[[255, 254], [253, 252]]]
    assert labels.tolist() == [1, 0]


def test_transforms_come_before_normalisation() -> None:
    dataset = tiny_images()
    object.__setattr__(dataset, "scale", np.float32([0.5]))
    object.__setattr__(dataset, "shift", np.float32([-1.0]))
    inputs, _ = dataset.batch([0], Transform(turns=2, invert=True))
    assert inputs[0].tolist() == [[[125.0, 125.5], [126.0, 126.5]]]


def test_batches_never_touch_the_shared_arrays() -> None:
    for dataset in (tiny_images(), read_only(load("digits"))):
        before = dataset.inputs.copy()
        for transform in (None, Transform(), Transform(turns=1), Transform(invert=True)):
            inputs, labels = dataset.batch(np.arange(2), transform)
            inputs += 1
            labels += 1
        assert np.array_equal(dataset.inputs, before)


def test_an_empty_batch_keeps_its_shape() -> None:
    inputs, labels = tiny_images().batch(np.arange(0))
    assert inputs.shape == (0, 1, 2, 2) and labels.shape == (0,)


# --- rotations by any angle


def test_a_rotation_by_a_whole_number_of_quarter_turns_is_that_turn() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 7, 7)).astype(np.uint8)
    for turns in range(4):
        assert np.array_equal(rotated(images, 90.0 * turns), np.rot90(images, turns, axes=(2, 3)))


def test_a_rotation_by_45_degrees_by_hand() -> None:
    # One white pixel in the middle. The pixel above it comes from (0.7071, 0.7071) off the middle, whose share there
    # is (1 - 0.7071)^2 = 0.0858, and 0.0858 * 255 = 21.9. The corners come from 1.4142 off: nothing is there.
    image = np.zeros((1, 1, 3, 3), np.uint8)
    image[0, 0, 1, 1] = 255
    assert rotated(image, 45.0)[0, 0].tolist() == [[0, 22, 0], [22, 255, 22], [0, 22, 0]]


@pytest.mark.parametrize("degrees", [0.5, 30.0, 61.7, 89.0])
def test_rotations_are_bilinear_and_against_the_clock(degrees: float) -> None:
    from scipy.ndimage import rotate

    images = np.random.default_rng(1).integers(0, 256, (4, 3, 16, 16)).astype(np.uint8)
    exact = rotate(images.astype(float), degrees, axes=(2, 3), reshape=False, order=1, mode="grid-constant")
    assert np.abs(rotated(images, degrees) - exact).max() < 2  # weights are whole 256ths


def test_turns_and_degrees_of_a_transform_add_up_and_a_batch_is_the_sum_of_its_samples() -> None:
    dataset = read_only(load("digits"))
    transform = Transform(turns=1, degrees=30.0)
    inputs, _ = dataset.batch(np.arange(8), transform)
    raw = rotated(np.ascontiguousarray(np.rot90(dataset.inputs[:8], axes=(2, 3))), 30.0)
    assert np.array_equal(inputs.numpy(), raw * dataset.scale[0] + dataset.shift[0])
    assert torch.equal(torch.cat([dataset.batch([i], transform)[0] for i in range(8)]), inputs)
    # Turning by 120 degrees at once is nearly the same: only the interpolation differs.
    assert np.abs(rotated(dataset.inputs[:8], 120.0).astype(int) - raw.astype(int)).max() <= 2


# --- digits and data.limit


def test_digits_are_small_grey_and_normalised() -> None:
    dataset = load("digits")
    assert dataset.inputs.shape == (1797, 1, 8, 8) and dataset.inputs.dtype == np.uint8
    assert dataset.inputs.max() == 255 and dataset.labels.dtype == np.uint8 and dataset.classes == 10
    assert not dataset.is_test.any() and dataset.input_shape == (1, 8, 8) and dataset.vocabulary is None
    inputs, _ = dataset.batch(np.arange(1797))
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std().item() == pytest.approx(1, abs=1e-3)


def test_a_limit_draws_by_the_seed_and_keeps_the_order() -> None:
    config = data_config(source="digits", limit=100)
    one, same, other = (load_dataset(config, seed) for seed in (0, 0, 1))
    assert len(one) == len(one.inputs) == 100
    assert np.array_equal(one.inputs, same.inputs) and not np.array_equal(one.inputs, other.inputs)
    every = {image.tobytes(): i for i, image in enumerate(load("digits").inputs)}
    positions = [every[image.tobytes()] for image in one.inputs]
    assert positions == sorted(positions)
    assert len(load("digits", limit=5000)) == 1797


def test_sources_without_owners_say_which_have_them() -> None:
    message = fault("digits", column="writer")
    assert message.startswith("partition.column=writer: data.source=digits does not say whose")
    assert "mnist (column writer), parquet, csv, huggingface or text" in message


# --- npz


def save_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def grey(n: int) -> np.ndarray:
    return (np.arange(n * 6).reshape(n, 2, 3) % 256).astype(np.uint8)


def test_npz_tells_training_validation_and_test_apart(tmp_path: Path) -> None:
    path = save_npz(
        tmp_path / "a.npz",
        train_images=grey(4),
        train_labels=np.array([[0], [1], [2], [0]]),
        val_images=grey(2),
        val_labels=np.array([[1], [2]]),
        test_images=grey(3),
        test_labels=np.array([[0], [1], [2]]),
    )
    dataset = load("npz", path)
    assert dataset.inputs.shape == (9, 1, 2, 3)
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert dataset.is_test.tolist() == [False] * 6 + [True] * 3
    assert dataset.is_validation is not None
    assert dataset.is_validation.tolist() == [False] * 4 + [True] * 2 + [False] * 3
    raw = np.concatenate([grey(4), grey(2)])
    assert dataset.scale[0] == pytest.approx(1 / raw.std())
    assert dataset.shift[0] == pytest.approx(-raw.mean() / raw.std())


def test_npz_colours_become_channels(tmp_path: Path) -> None:
    images = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3).astype(np.uint8)
    dataset = load("npz", save_npz(tmp_path / "a.npz", train_images=images, train_labels=[0, 1]))
    assert dataset.input_shape == (3, 4, 5) and dataset.inputs.flags.c_contiguous
    assert dataset.inputs[1, 2, 3, 4] == images[1, 3, 4, 2]


NPZ_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"images": grey(2)}, "has no train_images (found: images)"),
    ({"train_images": grey(2)}, "has train_images but no train_labels"),
    ({"train_images": grey(3), "train_labels": [0, 1]}, "has 3 images but train_labels 2 labels"),
    ({"train_images": grey(2), "train_labels": [0, -1]}, "the label -1 is not between 0 and 65535"),
    ({"train_images": grey(2), "train_labels": [0, 0.5]}, "the label 0.5 is not a whole number"),
    ({"train_images": grey(2), "train_labels": [0, np.nan]}, "the label nan is not a whole number"),
    ({"train_images": grey(2), "train_labels": ["a", "b"]}, "they must be whole numbers"),
    ({"train_images": grey(2), "train_labels": [3, 3]}, "all 2 samples have the label 3"),
    ({"train_images": grey(2), "train_labels": [[0, 1], [1, 1]]}, "has 2 labels per image"),
    ({"train_images": grey(0), "train_labels": []}, "has no samples"),
    ({"train_images": grey(2) / 255, "train_labels": [0, 1]}, "must hold whole numbers from 0 to 255"),
    ({"train_images": np.zeros((2, 3)), "train_labels": [0, 1]}, "has shape (2, 3)"),
]


@pytest.mark.parametrize(("arrays", "message"), NPZ_FAULTS, ids=lambda value: str(value)[-45:])
def test_a_faulty_npz_is_told_in_one_line(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    told = fault("npz", save_npz(tmp_path / "bad.npz", **arrays))
    assert told.startswith(f"data.path={tmp_path / 'bad.npz'}")
    assert message in told


@pytest.mark.parametrize("source", ["npz", "parquet", "csv", "image_folder", "text"])
def test_missing_and_damaged_files_are_told_in_one_line(source: str, tmp_path: Path) -> None:
    assert "does not exist" in fault(source, tmp_path / "nowhere")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(b"\x1f\x8b\x08 this is nothing")
    assert fault(source, damaged).startswith(f"data.path={damaged}")


# --- parquet


def table(n: int = 8) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "a": np.arange(n) * 1.5,
            "b": np.arange(n),
            "label": ["dog", "cat"] * (n // 2),
            "who": [7, 7, 3, 3] * (n // 4),
            "split": ["train"] * (n - 2) + ["test"] * 2,
        }
    )


def save(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path)
    return path


def test_parquet_takes_numeric_columns_and_sorts_string_labels(tmp_path: Path) -> None:
    dataset = load("parquet", save(table(), tmp_path / "a.parquet"), column="who")
    assert dataset.kind == "vector" and dataset.input_shape == (2,) and dataset.inputs.dtype == np.float32
    assert dataset.labels.tolist() == [1, 0] * 4
    assert dataset.is_test.tolist() == [False] * 6 + [True] * 2 and dataset.is_validation is None
    assert dataset.owner is not None and dataset.owner.tolist() == [1, 1, 0, 0] * 2
    assert dataset.owner_names == ("3", "7")
    inputs, _ = dataset.batch(np.arange(6))
    assert inputs.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    # Without an owner column, it is one more number.
    assert load("parquet", tmp_path / "a.parquet").input_shape == (3,)


def test_parquet_takes_lists_as_features(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [[1.0, 2, 3], [4, 5, 6]], "id": [1, 2], "y": [0, 1]})
    dataset = load("parquet", save(frame, tmp_path / "a.parquet"), label="y")
    assert dataset.inputs.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_constant_feature_is_not_divided_by_zero(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [3.0, 3.0], "label": [0, 1]})
    inputs, _ = load("parquet", save(frame, tmp_path / "a.parquet")).batch([0, 1])
    assert inputs.tolist() == [[0], [0]]


PARQUET_FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"a": np.nan}, {}, "8 rows have missing or infinite features, the first is row 0"),
    ({}, {"label": "lable"}, "has no column 'lable'"),
    ({}, {"column": "whom"}, "has no column 'whom' (did you mean 'who'?)"),
    ({"label": None}, {}, "8 rows have no data.label=label"),
    ({"who": None}, {"column": "who"}, "8 rows have no 'who'"),
    ({"split": "holdout"}, {}, "column 'split' holds 'holdout'"),
    ({"label": -3}, {}, "the label -3 is not between"),
    ({"a": "x", "b": "x", "who": "x"}, {}, "has no numeric column"),
]


@pytest.mark.parametrize(("change", "keys", "message"), PARQUET_FAULTS, ids=lambda value: str(value)[:40])
def test_a_faulty_table_is_told_in_one_line(
    change: dict[str, Any], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in fault("parquet", save(table().assign(**change), tmp_path / "a.parquet"), **keys)


def test_lists_of_unlike_length_are_told(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [[1.0, 2], [3.0]], "label": [0, 1]})
    assert "lists of different lengths" in fault("parquet", save(frame, tmp_path / "a.parquet"))


# --- image folder


def save_image(path: Path, value: int, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def test_an_image_folder_has_a_folder_per_class(tmp_path: Path) -> None:
    for i, name in enumerate(["b/1.png", "a/2.png", "a/1.PNG"]):
        save_image(tmp_path / name, 10 * i)
    (tmp_path / "a" / "readme.txt").write_text("not an image")
    dataset = load("image_folder", tmp_path)
    assert dataset.inputs.shape == (3, 1, 3, 4)
    assert dataset.labels.tolist() == [0, 0, 1]
    assert dataset.inputs[:, 0, 0, 0].tolist() == [20, 10, 0]


def test_an_image_folder_may_have_its_own_test_split(tmp_path: Path) -> None:
    for name in ["train/cat/1.png", "train/dog/1.png", "test/dog/1.png"]:
        save_image(tmp_path / name, 7, mode="RGB")
    save_image(tmp_path / "test" / "cat" / "1.png", 9)  # one grey image among colours
    dataset = load("image_folder", tmp_path)
    assert dataset.input_shape == (3, 3, 4)
    assert dataset.labels.tolist() == [0, 1, 0, 1] and dataset.is_test.tolist() == [False, False, True, True]
    assert dataset.inputs[0, :, 0, 0].tolist() == [7, 0, 255]
    assert dataset.inputs[2, :, 0, 0].tolist() == [9, 9, 9]
    assert dataset.is_validation is None


def test_images_of_any_size_are_made_one_size_when_asked_for(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "1.png", 10, size=(8, 6))
    save_image(tmp_path / "b" / "2.png", 20, size=(3, 5))
    dataset = load("image_folder", tmp_path, size=4)
    assert dataset.input_shape == (1, 4, 4) and dataset.inputs[:, 0, 2, 3].tolist() == [10, 20]


def test_val_of_an_image_folder_and_of_a_table_is_for_validation(tmp_path: Path) -> None:
    for name in ["train/cat/1.png", "train/dog/1.png", "val/dog/1.png", "test/cat/1.png"]:
        save_image(tmp_path / name, 7)
    frame = table().assign(split=["train"] * 4 + ["val"] * 2 + ["test"] * 2)
    for dataset, validation in [
        (load("image_folder", tmp_path), [False, False, True, False]),
        (load("parquet", save(frame, tmp_path / "a.parquet")), [False] * 4 + [True] * 2 + [False] * 2),
    ]:
        assert dataset.is_validation is not None and dataset.is_validation.tolist() == validation
        assert not (dataset.is_test & dataset.is_validation).any()
    few = load("parquet", tmp_path / "a.parquet", limit=7)
    assert few.is_validation is not None and len(few.is_validation) == 7


# --- data.normalise


def test_pixels_are_standard_halved_or_left_between_0_and_1(tmp_path: Path) -> None:
    images = np.array([[[0, 51]], [[102, 255]]], np.uint8)
    path = save_npz(tmp_path / "a.npz", train_images=images, train_labels=np.array([0, 1]))
    seen = {how: load("npz", path, normalise=how).batch([0, 1])[0].flatten() for how in ("standard", "half", "none")}
    assert seen["none"].tolist() == pytest.approx([0, 0.2, 0.4, 1])
    assert seen["half"].tolist() == pytest.approx([-1, -0.6, -0.2, 1], abs=1e-6)
    assert seen["standard"].mean() == pytest.approx(0, abs=1e-6)
    assert torch.equal(seen["standard"], load("npz", path).batch([0, 1])[0].flatten())  # the default


def test_features_may_be_left_as_they_are_and_only_pixels_are_halved(tmp_path: Path) -> None:
    path = save(table(), tmp_path / "a.parquet")
    inputs, _ = load("parquet", path, column="who", normalise="none").batch([0, 3])
    assert inputs.tolist() == [[0, 0], [4.5, 3]]
    for source in ("parquet", "text"):
        with pytest.raises(InputError, match=r"data\.normalise=half is for the pixels of images.*use standard or none"):
            data_config(source=source, path=str(path), normalise="half")


def test_text_is_never_changed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world" * 3)
    plain, none = (
        load("text", tmp_path / "a.txt", window=5, normalise=how).batch([0, 1])[0] for how in ("standard", "none")
    )
    assert torch.equal(plain, none)


def test_images_of_two_sizes_or_damaged_ones_are_told_by_name(tmp_path: Path) -> None:
    assert "has no images" in fault("image_folder", tmp_path)
    save_image(tmp_path / "a" / "1.png", 1)
    save_image(tmp_path / "b" / "2.png", 1, size=(8, 8))
    assert "2.png is 8 x 8 pixels but" in fault("image_folder", tmp_path)
    (tmp_path / "b" / "2.png").write_bytes(b"nothing")
    assert "2.png is not a readable image" in fault("image_folder", tmp_path)


# --- text


def test_plain_text_gives_windows_and_the_character_that_follows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abcabd")
    dataset = read_only(load("text", path, window=3, stride=1))
    assert dataset.kind == "text" and dataset.vocabulary == dataset.classes == 4
    inputs, labels = dataset.batch([0, 1, 2])
    assert inputs.tolist() == [[0, 1, 2], [1, 2, 0], [2, 0, 1]] and inputs.dtype == torch.int64
    assert labels.tolist() == [0, 1, 3]
    assert len(load("text", path, window=3, stride=2)) == 2


def test_long_windows_over_short_streams_do_not_wrap_around(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text((string.ascii_lowercase * 10)[:250])
    dataset = load("text", path, window=200)
    inputs, labels = dataset.batch(np.arange(50))
    assert torch.equal(inputs[1:, -1], labels[:-1])
    assert labels[0] == 200 % 26


def test_windows_never_cross_owners_and_short_owners_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    rows = [("p", "NA", "abc"), ("p", "y", "xxxxxx"), ("q", "x", "zz"), ("p", "NA", "de")]
    pd.DataFrame(rows, columns=["play", "role", "text"]).to_csv(path, index=False)
    dataset = load("text", path, column="play+role", window=4)
    assert dataset.owner_names == ("p/NA", "p/y")
    assert dataset.owner is not None and dataset.owner.tolist() == [0, 0, 1, 1]
    symbols = sorted(set("abc dexxxxxx"))
    inputs, labels = dataset.batch(np.arange(4))
    seen = ["".join(symbols[c] for c in [*row, label]) for row, label in zip(inputs, labels, strict=True)]
    assert seen == ["abc d", "bc de", "xxxxx", "xxxxx"]


def test_faulty_texts_are_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc")
    assert "data.window=80 is longer than any text" in fault("text", path)
    assert "is plain text without owners" in fault("text", path, column="role")
    path.write_bytes(b"\xff\xfe\xfa")
    assert "cannot be read as UTF-8" in fault("text", path)
    path.write_text("aaaaaa")
    assert "must be at least two classes" in fault("text", path, window=2)
    (tmp_path / "a.csv").write_text("role,line\nx,hello\n")
    assert "has no column 'text'" in fault("text", tmp_path / "a.csv", column="role")
    (tmp_path / "a.md").write_text("abc")
    assert "is of no known kind" in fault("text", tmp_path / "a.md")


# --- sets that torchvision reads


def test_a_failed_download_says_where_files_were_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    asked: list[bool] = []

    def offline(root: str, train: bool, download: bool) -> None:
        asked.append(download)
        raise RuntimeError("Dataset not found.\nmore") if not download else OSError("no network")

    monkeypatch.setattr(torchvision.datasets, "MNIST", offline)
    told = fault("mnist", root=str(tmp_path))
    assert asked == [False, True]  # the network is asked only when the files are not there
    assert f"no usable files under data.root={tmp_path.resolve()}" in told
    assert "(no network)" in told and "$RAYFL_DATA" in told


def test_damaged_files_are_not_mistaken_for_missing_ones(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (raw / f"{part}-{name}").write_bytes(b"\x00\x00\x08\x03 cut off")
    assert f"the files under data.root={tmp_path.resolve()} are damaged" in fault("mnist", root=str(tmp_path))


def test_the_root_is_the_configs_then_the_environments_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYFL_DATA", "from-environment")
    assert data_root(data_config(source="mnist", root="mine")) == Path("mine")
    assert data_root(data_config(source="mnist")) == Path("from-environment")
    monkeypatch.delenv("RAYFL_DATA")
    assert data_root(data_config(source="mnist")) == Path("data")


def test_a_relative_path_is_also_looked_for_among_the_downloaded_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "sets"))
    (tmp_path / "sets").mkdir()
    np.savez(tmp_path / "sets" / "a.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
    assert len(load("npz", Path("a.npz"))) == 4
    np.savez("a.npz", x=np.zeros((6, 2), np.float32), y=np.arange(6) % 2)
    assert len(load("npz", Path("a.npz"))) == 6  # the current folder goes first
    with pytest.raises(InputError, match=r"data\.path=b\.npz does not exist"):
        load("npz", Path("b.npz"))


def test_cifar10_is_read_from_one_npz_where_there_is_one(tmp_path: Path) -> None:
    images = np.zeros((4, 32, 32, 3), np.uint8)
    labels = [0, 1, 2, 3]
    save_npz(
        tmp_path / "cifar10.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    assert load("cifar10", root=str(tmp_path)).inputs.shape == (8, 3, 32, 32)


@needs_data
@pytest.mark.parametrize(
    ("source", "shape", "mean", "deviation", "n_train"),
    [
        ("mnist", (1, 28, 28), [0.1307], [0.3081], 60_000),
        ("fashion_mnist", (1, 28, 28), [0.2860], [0.3530], 60_000),
        ("cifar10", (3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], 50_000),
    ],
)
def test_the_well_known_sets_have_their_well_known_numbers(
    source: str, shape: tuple[int, ...], mean: list[float], deviation: list[float], n_train: int
) -> None:
    dataset = load(source)
    assert dataset.input_shape == shape and dataset.classes == 10 and dataset.inputs.flags.c_contiguous
    assert (~dataset.is_test).sum() == n_train and dataset.is_test.sum() == 10_000
    assert (1 / dataset.scale / 255).tolist() == pytest.approx(deviation, abs=1e-4)
    assert (-dataset.shift / dataset.scale / 255).tolist() == pytest.approx(mean, abs=1e-4)


@needs_data
def test_mnist_writers_are_natural_clients() -> None:
    dataset = load("mnist", column="writer")
    assert dataset.owner is not None and dataset.owner_names is not None
    writers = [np.unique(dataset.owner[side]) for side in (~dataset.is_test, dataset.is_test)]
    assert (len(writers[0]), len(writers[1])) == (539, 297)
    config = partition_config(kind="natural", column="writer", samples=[20, 1000])
    partition = make_partition(config, dataset, seed=0)
    assert all(len(np.unique(dataset.owner[partition.train_of(i)])) == 1 for i in range(partition.clients))
    assert (partition.n_train + partition.n_test).min() >= 20
    assert "has no column 'hand'" in fault("mnist", column="hand")


@needs_data
def test_shakespeares_roles_are_natural_clients() -> None:
    path = Path(os.environ["RAYFL_DATA"]) / "shakespeare-roles.csv.gz"
    dataset = load("text", path, column="play+role", stride=10)
    assert dataset.vocabulary == 75 and dataset.inputs.dtype == np.uint8
    assert dataset.owner_names is not None and "hamlet/HAMLET" in dataset.owner_names
    config = partition_config(kind="natural", column="play+role", clients=50)
    assert make_partition(config, dataset, seed=0).clients == 50
    # Windows of 80 over all roles, as the data's own page counts them: 4.22 million.
    assert len(dataset) == pytest.approx(422_000, rel=0.01)


@needs_data
def test_medical_images_are_read_from_npz() -> None:
    dataset = load("npz", Path(os.environ["RAYFL_DATA"]) / "pneumoniamnist.npz")
    assert len(dataset) == 5856 and dataset.is_test.sum() == 624 and dataset.classes == 2
    assert dataset.is_validation is not None and dataset.is_validation.sum() == 524
