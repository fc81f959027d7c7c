"""Tables: what becomes a feature, what is refused with its cure, and that a csv file is read like a Parquet file."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfl.config import data_config
from rayfl.data import Data, Dataset
from rayfl.data.sources import load_dataset
from rayfl.data.sources.features import features_of
from rayfl.errors import InputError
from rayfl.results import Run

PEOPLE = """\
age,height,member,city,split,town,label
20,1.5,true,b,train,x,yes
30,,false,a,train,y,no
40,1.7,true,,train,x,yes
90,1.9,false,c,test,y,no
"""
CITY = {"categories": ["city"], "client": "town"}


def load(path: Path, targets: str = "class", **keys: Any) -> Dataset:
    source = "parquet" if path.suffix == ".parquet" else "csv"
    return load_dataset(data_config(source=source, path=str(path), **keys), 0, targets=targets)  # type: ignore[arg-type]


def fault(path: Path, **keys: Any) -> str:
    with pytest.raises(InputError) as told:
        load(path, **keys)
    (line,) = told.value.lines
    assert line.startswith(f"data.path={path}")
    return line


def write(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- csv


def test_a_csv_file_has_numbers_truth_values_categories_and_clients(tmp_path: Path) -> None:
    text = PEOPLE.replace("30,,", "30,1.6,").replace("1.7,true,,", "1.7,true,a,")
    data = load(write(tmp_path, text), normalise="none", **CITY)
    assert data.feature_names == ("age", "height", "member", "city=a", "city=b", "city=c")
    expected = [[20, 1.5, 1, 0, 1, 0], [30, 1.6, 0, 1, 0, 0], [40, 1.7, 1, 1, 0, 0], [90, 1.9, 0, 0, 0, 1]]
    assert np.array_equal(data.inputs, np.float32(expected))
    assert data.labels.tolist() == [1, 0, 1, 0] and data.class_names == ("no", "yes")
    assert data.is_test.tolist() == [False] * 3 + [True] and data.owner_names == ("x", "y")


def test_csv_and_parquet_files_of_one_table_are_the_same_data(tmp_path: Path) -> None:
    path = write(tmp_path, PEOPLE)
    frame = pd.read_csv(path)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(PEOPLE.encode()))
    write(tmp_path, PEOPLE.replace(",", ";"), "c.csv")
    one = load(path, missing="mean", **CITY)
    for name, keys in (("a.parquet", {}), ("b.csv.gz", {}), ("c.csv", {"separator": ";"})):
        other = load(tmp_path / name, missing="mean", **CITY, **keys)
        assert np.array_equal(one.inputs, other.inputs) and one.feature_names == other.feature_names
        assert np.array_equal(one.labels, other.labels) and one.owner_names == other.owner_names


def test_the_type_of_a_csv_column_is_settled_by_all_of_its_rows(tmp_path: Path) -> None:
    rows = 400_000  # several of pyarrow's usual blocks of one megabyte
    lines = [f"{i % 7},{i % 2}" for i in range(rows)]
    data = load(write(tmp_path, "\n".join(["a,label", *lines, "0.5,1"]) + "\n"))
    assert len(data) == rows + 1 and data.inputs[-1] == 0.5


def test_na_is_a_gap_among_numbers_and_a_value_among_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,label\n1,NA,0\nNA,x,1\n3,x,1\n")
    data = load(path, categories=["b"], missing="mean", normalise="none")
    assert data.feature_names == ("a", "a is missing", "b=NA", "b=x")
    assert data.inputs.tolist() == [[1, 0, 1, 0], [2, 1, 0, 1], [3, 0, 0, 1]]


def test_numbers_of_a_csv_file_are_predicted(tmp_path: Path) -> None:
    path = write(tmp_path, "a,price\n1,2.5\n2,4.5\n3,6.5\n")
    data = load(path, "number", label="price")
    assert data.targets == "number" and data.labels.tolist() == [2.5, 4.5, 6.5]
    assert "the label 2.5 is not a whole number" in fault(path, label="price")


# --- gaps


def test_gaps_are_refused_with_their_number_and_two_cures(tmp_path: Path) -> None:
    path = write(tmp_path, PEOPLE)
    told = fault(path, drop=["city"], client="town")
    assert "1 rows have missing or infinite features, the first is row 1, in height" in told
    assert "fill them in or drop the rows, or use data.missing=mean" in told
    told = fault(path, drop=["height"], **CITY)
    assert "column 'city': 1 rows have no value" in told and "data.missing=mean" in told


def test_a_gap_becomes_the_mean_of_the_training_rows_and_is_marked(tmp_path: Path) -> None:
    data = load(write(tmp_path, PEOPLE), missing="mean", normalise="none", **CITY)
    assert data.feature_names == (
        "age",
        "height",
        "height is missing",
        "member",
        "city=a",
        "city=b",
        "city=c",
        "city is missing",
    )
    assert data.inputs[1, 1:3].tolist() == pytest.approx([1.6, 1])  # (1.5 + 1.7) / 2: the test row's 1.9 is not in it
    assert data.inputs[:, 2].tolist() == [0, 1, 0, 0]
    assert data.inputs[:, 4:].tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


def test_infinite_numbers_and_columns_without_a_value_are_never_filled(tmp_path: Path) -> None:
    told = fault(write(tmp_path, "a,label\ninf,0\n,1\n"), missing="mean")
    assert "missing or infinite features" in told and "data.missing" not in told
    path = write(tmp_path, "a,split,label\n,train,0\n,train,1\n2,test,1\n")
    assert "column 'a' has no value outside the test split" in fault(path, missing="mean")
    assert "column 'b' holds nothing, not numbers: data.drop=[b]" in fault(write(tmp_path, "a,b,label\n1,,0\n2,,1\n"))
    assert "1 rows have no data.label=label" in fault(write(tmp_path, "a,label\n1,0\n2,\n"))


def test_frames_from_python_are_filled_too_and_their_digest_says_so() -> None:
    frame = pd.DataFrame({"a": [1.0, None, 3.0], "label": [0, 1, 1]})
    plain, filled = Data(frame), Data(frame, missing="mean")
    assert plain.digest() != filled.digest()
    assert filled.samples(None, "data").inputs.tolist() == [[1, 0], [2, 1], [3, 0]]
    with pytest.raises(InputError, match="missing='median' is not allowed; allowed: refuse, mean"):
        Data(frame, missing="median").samples(None, "data")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="missing are for a DataFrame"):
        Data([[1.0], [2.0]], [0, 1], missing="mean").samples(None, "data")


# --- what is no feature


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,day,label\n1,2020-01-02,0\n2,2020-01-03,1\n", "column 'day' holds date32[day], not numbers: make numbers"),
        ("a,b,label\n1,x,0\n2,y,1\n", "column 'b' holds text, not numbers: data.categories=[b] makes one feature per"),
        ("b,label\nx,0\ny,1\n", "has no numeric column for features, only b (text): add some, or name columns"),
        ("a,a,label\n1,2,0\n1,2,1\n", "has two columns 'a': rename one"),
        ("a,label\n1,2\n1,2,3\n", "cannot be read as csv (CSV parse error: Expected 2 columns, got 3"),
        ("a;label\n1;0\n2;1\n", "has only the column 'a;label': say what stands between two values with data.sep"),
        ("", "cannot be read as csv (Empty CSV file): check data.separator=','"),
    ],
    ids=lambda value: value[:30],
)
def test_what_cannot_be_read_says_what_to_do(text: str, told: str, tmp_path: Path) -> None:
    assert told in fault(write(tmp_path, text))


def test_a_folder_is_no_csv_file(tmp_path: Path) -> None:
    assert "is a folder: data.source=csv needs a file" in fault(tmp_path)


def test_numbers_beside_lists_are_named_and_the_run_says_so(
    tmp_path: Path, simulate_quietly: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(0)
    frame = {"x": list(rng.normal(size=(40, 3))), "id": range(40), "size": 1.0, "label": [0, 1] * 20}
    pd.DataFrame(frame).to_parquet(path)
    data = load(path)
    assert data.notes == (f"data.path={path}: not used as features, since lists of numbers are there: id, size",)
    assert data.feature_names == ("x[0]", "x[1]", "x[2]")
    assert load(path, drop=["id", "size"]).notes == ()
    said: list[str] = []
    monkeypatch.setattr("rayfl.simulation.screen.Screen.warn", lambda self, text: said.append(text))
    keys = ["federation=serial", "model.name=mlp", "method.name=fedavg", "rounds=1", "local.steps=1"]
    keys += ["partition.kind=iid", "partition.clients=2", "output.models=shared"]
    run = simulate_quietly(*keys, "data.source=parquet", f"data.path={path}")
    assert list(data.notes) == said
    index = json.loads((Path(run.path) / "models" / "index.json").read_text())
    assert index["inputs"]["feature_names"] == ["x[0]", "x[1]", "x[2]"]  # as Run.model wants them


def test_features_are_made_column_by_column() -> None:
    import pyarrow as pa

    table = pa.table(
        {"n": [1, 2], "flag": [True, False], "kind": pa.array(["b", "a"]).dictionary_encode(), "y": [0, 1]}
    )
    found = features_of(table, {"y"}, (), "refuse", np.ones(2, bool), "here")
    assert found.names == ("n", "flag", "kind=b", "kind=a") and found.unused == ()
    assert found.inputs.dtype == np.float32 and found.inputs.tolist() == [[1, 1, 1, 0], [2, 0, 0, 1]]
