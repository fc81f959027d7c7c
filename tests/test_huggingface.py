"""Hugging Face data sets from folders that the tests make with the library itself; nothing is downloaded."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from rayfl.config import data_config, load_config, partition_config
from rayfl.data import Dataset, make_partition
from rayfl.data.sources import load_dataset
from rayfl.errors import InputError
from rayfl.results import Run

datasets = pytest.importorskip("datasets", reason="the extra rayfl[hf] is not installed")

ANIMALS = ["cat", "dog", "owl"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may ask the hub, or read what somebody had from it."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(path: Path | str | list[str], column: str | None = None, targets: Any = "class", **keys: Any) -> Dataset:
    path = path if isinstance(path, list) else str(path)
    return load_dataset(data_config(source="huggingface", path=path, **keys), 0, column, targets)


def fault(*args: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as told:
        load(*args, **keys)
    (line,) = told.value.lines
    assert line.startswith("data.")
    return line


def pictures(rows: int, first: int = 0, colour: bool = False, **more: Any) -> Any:
    """Images of 4 x 3 pixels, all of the value of their row, with classes that have names."""
    shape = (3, 4, 3) if colour else (3, 4)
    images = [Image.fromarray(np.full(shape, first + row, np.uint8)) for row in range(rows)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=ANIMALS)}
    columns = {"image": images, "label": [row % 2 for row in range(rows)], **more}
    data = datasets.Dataset.from_dict(columns)
    return data.cast(datasets.Features({**data.features, **features}))


def three_splits() -> Any:
    return datasets.DatasetDict(train=pictures(4), validation=pictures(2, 10), test=pictures(3, 20))


# --- where the splits are


def three_places(folder: Path) -> dict[str, Any]:
    """The same data as save_to_disk makes it, and in the two layouts of the hub."""
    data = three_splits()
    data.save_to_disk(str(folder / "saved"))
    for split, part in data.items():
        (folder / "hub" / "data").mkdir(parents=True, exist_ok=True)
        (folder / "folders" / split).mkdir(parents=True)
        part.to_parquet(folder / "hub" / "data" / f"{split}-00000-of-00001.parquet")
        part.to_parquet(folder / "folders" / split / "0000.parquet")
    return {
        "saved": folder / "saved",
        "hub": folder / "hub",
        "folders": folder / "folders",
        "list": [str(folder / "hub" / "data" / f"{split}-00000-of-00001.parquet") for split in data],
    }


def test_folders_of_save_to_disk_and_parquet_files_are_the_same_data(tmp_path: Path) -> None:
    for name, path in three_places(tmp_path).items():
        data = load(path)
        assert data.kind == "image" and data.inputs.shape == (9, 1, 3, 4) and data.inputs.dtype == np.uint8, name
        order = np.argsort(data.inputs[:, 0, 0, 0])  # files of a folder are read in the order of their names
        assert data.inputs[order, 0, 2, 3].tolist() == [0, 1, 2, 3, 10, 11, 20, 21, 22], name
        assert data.labels[order].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
        assert data.is_test[order].tolist() == [False] * 6 + [True] * 3
        assert data.is_validation is not None and np.flatnonzero(data.is_validation[order]).tolist() == [4, 5]
        # The third class has no image, and a model must know it all the same.
        assert data.class_names == tuple(ANIMALS) and data.classes == 3


def test_splits_may_be_chosen_and_left_out(tmp_path: Path) -> None:
    data = datasets.DatasetDict(train=pictures(4), extra=pictures(2, 10), hidden=pictures(2, 20))
    data.save_to_disk(str(tmp_path / "a"))
    told = fault(tmp_path / "a")
    assert "has the splits train, extra, hidden: say what they are for, such as data.splits={train: train" in told
    chosen = load(tmp_path / "a", splits={"train": ["train", "extra"]})
    assert chosen.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 10, 11] and not chosen.is_test.any()
    assert "has no split 'tset': data.splits can name" in fault(
        tmp_path / "a", splits={"train": "train", "test": "tset"}
    )
    assert "names 'train' twice" in fault(tmp_path / "a", splits={"train": "train", "test": "train"})


def test_a_single_split_is_for_training_whatever_its_name(tmp_path: Path) -> None:
    datasets.DatasetDict(test=pictures(4)).save_to_disk(str(tmp_path / "a"))
    pictures(4).save_to_disk(str(tmp_path / "b"))
    assert not load(tmp_path / "a").is_test.any() and not load(tmp_path / "b").is_test.any()


def test_folders_with_several_sets_need_the_name_of_one(tmp_path: Path) -> None:
    for name, first in (("en", 0), ("de", 50)):
        (tmp_path / name).mkdir()
        pictures(2, first).to_parquet(tmp_path / name / "train-00000-of-00001.parquet")
    assert "has several data sets, in de, en: say which with data.config_name" in fault(tmp_path)
    assert load(tmp_path, config_name="de").inputs[0, 0, 0, 0] == 50
    assert "has no Parquet files in data.config_name=fr" in fault(tmp_path, config_name="fr")


def test_what_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    assert "does not exist (looked for" in fault(tmp_path / "nowhere")
    assert "was not made with save_to_disk" in fault(tmp_path)
    told = fault("owner/name")
    assert "is no folder here, and cannot be loaded from the hub (Couldn't reach 'owner/name' on the Hub" in told
    assert "load_dataset(...).save_to_disk(folder)" in told
    pictures(2).save_to_disk(str(tmp_path / "a"))
    assert "data.revision=main is not used" in fault(tmp_path / "a", revision="main")
    (tmp_path / "a" / "state.json").write_text("{")
    assert "make the folder again with save_to_disk" in fault(tmp_path / "a")
    (tmp_path / "b.parquet").write_text("nothing")
    assert "cannot be read as parquet" in fault(tmp_path / "b.parquet")
    assert "data.config_name=x is not used with a list of files" in fault(
        [str(tmp_path / "b.parquet")], config_name="x"
    )


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert fault("mnist") == "data.source=huggingface needs the package datasets: install rayfl[hf]"


# --- columns


def test_images_and_classes_are_found_and_clients_are_named(tmp_path: Path) -> None:
    pictures(6, writer=["b", "a"] * 3, page=range(6)).save_to_disk(str(tmp_path))
    data = load(tmp_path, client="writer")
    assert data.owner_names == ("a", "b") and data.owner is not None and data.owner.tolist() == [1, 0] * 3
    by_column = load(tmp_path, column="writer")
    assert np.array_equal(by_column.owner, data.owner)
    assert make_partition(partition_config(kind="natural"), data, 0).client_names == ("a", "b")
    assert "has no column 'writter' (did you mean 'writer'?): data.client" in fault(tmp_path, client="writter")


def test_two_columns_of_images_or_of_classes_are_told(tmp_path: Path) -> None:
    data = pictures(4).add_column("fine", [0, 1, 2, 1])
    both = data.cast_column("fine", datasets.ClassLabel(names=["x", "y", "z"]))
    both.save_to_disk(str(tmp_path / "a"))
    told = fault(tmp_path / "a")
    assert "has classes in label, fine: name one with data.label; there are image (" in told
    assert load(tmp_path / "a", label="fine").class_names == ("x", "y", "z")
    copy = pictures(4)
    datasets.concatenate_datasets(
        [copy, copy.select_columns(["image"]).rename_column("image", "mask")], axis=1
    ).save_to_disk(str(tmp_path / "b"))
    assert "has images in image, mask: say which with data.input" in fault(tmp_path / "b")
    assert load(tmp_path / "b", input="mask").kind == "image"


def test_grey_and_colour_become_colour_and_sizes_must_be_one(tmp_path: Path) -> None:
    mixed = datasets.DatasetDict(train=pictures(2), test=pictures(2, 7, colour=True))
    mixed.save_to_disk(str(tmp_path / "a"))
    data = load(tmp_path / "a")
    assert data.input_shape == (3, 3, 4) and data.inputs[2, :, 0, 0].tolist() == [7, 7, 7]
    large = datasets.Dataset.from_dict(
        {"image": [Image.new("L", (2, 2)), Image.new("L", (4, 6), 9)], "label": [0, 1]},
        datasets.Features(image=datasets.Image(), label=datasets.Value("int64")),
    )
    large.save_to_disk(str(tmp_path / "b"))
    assert "row 1 is 4 x 6 pixels but row 0 is 2 x 2: make all one size, such as 2, with data.size" in fault(
        tmp_path / "b"
    )
    resized = load(tmp_path / "b", size=3)
    assert resized.input_shape == (1, 3, 3) and resized.inputs[1].max() == 9


def test_a_damaged_image_is_told_by_its_row(tmp_path: Path) -> None:
    kind = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    bad = datasets.Dataset.from_dict({"image": [{"bytes": b"no", "path": None}, None], "label": [0, 1]}, kind)
    bad.save_to_disk(str(tmp_path / "a"))
    assert "column 'image': row 0 is not a readable image" in fault(tmp_path / "a")
    bad.select([1, 1]).save_to_disk(str(tmp_path / "b"))
    assert "row 0 is not a readable image (it is missing)" in fault(tmp_path / "b")


def test_parquet_files_that_others_wrote_hold_images_too(tmp_path: Path) -> None:
    rows = []
    for value in range(3):
        file = io.BytesIO()
        Image.new("L", (2, 2), value).save(file, "PNG")
        rows.append({"image": {"bytes": file.getvalue(), "path": f"{value}.png"}, "label": value})
    pd.DataFrame(rows).to_parquet(tmp_path / "all.parquet")
    assert load(tmp_path / "all.parquet").inputs[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_arrays_are_images_or_features_by_their_shape(tmp_path: Path) -> None:
    x = np.arange(4 * 2 * 5 * 3, dtype=np.uint8).reshape(4, 2, 5, 3)
    kinds = {
        "a": (datasets.Array3D((2, 5, 3), "uint8"), x, (3, 2, 5)),
        "b": (datasets.Array2D((2, 5), "float32"), x[..., 0] / 7, (1, 2, 5)),
        "c": (datasets.List(datasets.List(datasets.Value("uint8"))), x[..., 0], (1, 2, 5)),
        "d": (datasets.List(datasets.Value("float32")), x[:, 0, :, 0], (5,)),
    }
    for name, (kind, values, shape) in kinds.items():
        features = datasets.Features(x=kind, label=datasets.Value("int64"))
        data = datasets.Dataset.from_dict({"x": values, "label": [0, 1, 0, 1]}, features)
        data.save_to_disk(str(tmp_path / name))
        assert load(tmp_path / name).input_shape == shape, name
    ragged = datasets.Dataset.from_dict({"x": [[[1]], [[1], [2]]], "label": [0, 1]})
    ragged.save_to_disk(str(tmp_path / "e"))
    assert "has arrays of different shapes" in fault(tmp_path / "e")


def test_tables_follow_the_rules_of_tables_and_predict_numbers(tmp_path: Path) -> None:
    columns = {"a": [1.0, 2, 3, 4], "b": [1, 0, 1, 0], "city": list("xyxy"), "price": [0.5, 1.5, 2.5, 3.5]}
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path))
    told = fault(tmp_path)
    assert (
        "does not say which column has the labels: name one with data.label; there are a (float64), b (int64)" in told
    )
    assert "column 'city' holds text, not numbers: data.categories=[city]" in fault(tmp_path, label="b")
    data = load(tmp_path, targets="number", label="price", categories=["city"])
    assert data.feature_names == ("a", "b", "city=x", "city=y") and data.labels.tolist() == [0.5, 1.5, 2.5, 3.5]
    chosen = load(tmp_path, label="b", input=["a"])
    assert chosen.feature_names == ("a",) and chosen.classes == 2


def test_hidden_labels_name_the_split_that_has_them(tmp_path: Path) -> None:
    hidden = pictures(2).map(lambda row: {"label": -1})
    datasets.DatasetDict(train=pictures(4), test=hidden).save_to_disk(str(tmp_path))
    assert "2 rows have the label -1, which means none, in test: leave that split out" in fault(tmp_path)
    assert len(load(tmp_path, splits={"train": "train"})) == 4


# --- text


def test_text_is_cut_into_windows_by_client_and_split(tmp_path: Path) -> None:
    train = {"role": ["b", "a", "b"], "text": ["xyx", "abab", "zz"]}
    test = {"role": ["a", "c"], "text": ["baba", "x"]}
    parts = {"train": datasets.Dataset.from_dict(train), "test": datasets.Dataset.from_dict(test)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path))
    data = load(tmp_path, client="role", window=3)
    inputs, labels = data.batch(np.arange(len(data)))
    symbols = " abxyz"
    seen = ["".join(symbols[c] for c in [*row, label]) for row, label in zip(inputs, labels, strict=True)]
    assert seen == ["abab", "xyx ", "yx z", "x zz", "baba"]
    assert data.owner is not None and data.owner.tolist() == [0, 1, 1, 1, 0] and data.owner_names == ("a", "b", "c")
    assert data.is_test.tolist() == [False] * 4 + [True]
    assert "data.window=80 predicts each character" in fault(tmp_path, client="role")


def test_rows_that_are_windows_already_have_the_next_character_as_label(tmp_path: Path) -> None:
    columns = {"x": ["abc", "bca", "cab"], "y": ["a", "b", "d"], "who": ["p", "q", "p"]}
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path))
    data = load(tmp_path, input="x", label="y", client="who")
    inputs, labels = data.batch([0, 2])
    assert inputs.tolist() == [[0, 1, 2], [2, 0, 1]] and labels.tolist() == [0, 3] and data.vocabulary == 4
    assert data.owner_names == ("p", "q")
    assert "must hold the one character that follows each" in fault(tmp_path, input="x", label="x")
    assert "do not go together" in fault(tmp_path, input="x", label="y", window=2)


# --- a run


def test_a_run_sees_the_images_that_an_image_folder_has(tmp_path: Path, simulate_quietly: Callable[..., Run]) -> None:
    pictures(40).save_to_disk(str(tmp_path / "saved"))
    for row in range(40):
        folder = tmp_path / "files" / ANIMALS[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((3, 4), row, np.uint8)).save(folder / f"{row:02}.png")
    keys = ["federation=serial", "model.name=mlp", "method.name=fedavg", "rounds=1", "local.steps=2", "name=hf"]
    keys += ["partition.kind=iid", "partition.clients=4", "data.source=huggingface", f"data.path={tmp_path / 'saved'}"]
    run = simulate_quietly(*keys)
    assert run.clients.n_train.sum() == 32 and run.rounds.loss.notna().all()
    assert load_config(run.config.to_tree()) == run.config
    from_files = load_dataset(data_config(source="image_folder", path=str(tmp_path / "files")), 0)
    from_saved = load_dataset(run.config.data, 0)
    order = np.argsort(from_files.inputs[:, 0, 0, 0])
    assert np.array_equal(from_files.inputs[order], from_saved.inputs)
    assert np.array_equal(from_files.labels[order], from_saved.labels)
