"""Finding the runs below a folder."""

from pathlib import Path

import pytest

import rayfl
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.results import RunWriter, Storage
from rayfl.simulation.folder import config_file


def written(folder: Path, method: str = "fedavg") -> Path:
    """Write a run of one round."""
    config = load_config(None, [f"method.name={method}", "rounds=1"])
    storage = Storage(folder)
    assert storage.claim("config.yaml", config_file(config))
    with RunWriter(storage, folder.name, method, 0) as writer:
        writer.write_round(1, {"accuracy": 0.5}, {"client": [0]})
    return folder


def names(folder: Path) -> list[str]:
    return [str(Path(run.path).relative_to(folder)) for run in rayfl.load_all(folder)]


def test_runs_are_found_at_any_depth_up_to_four_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a/two", "a/one", "x/y/z/deep", "1/2/3/4/too_deep"):
        written(tmp_path / name)
    assert names(tmp_path) == ["a/one", "a/two", "b", "x/y/z/deep"]
    assert rayfl.load_all(tmp_path)[0].rounds["accuracy"].tolist() == [0.5]


def test_a_run_folder_is_itself_alone(tmp_path: Path) -> None:
    written(tmp_path / "run")
    written(tmp_path / "run" / "nested")
    assert names(tmp_path / "run") == ["."]


def test_a_run_killed_before_its_tables_is_found_and_a_users_config_is_none(tmp_path: Path) -> None:
    Storage(tmp_path / "killed").claim("config.yaml", config_file(load_config(None)))
    (tmp_path / "config.yaml").write_text("rounds: 3\n")
    (tmp_path / "notes").mkdir()
    written(tmp_path / "done")
    assert names(tmp_path) == ["done", "killed"]
    assert [run.finished for run in rayfl.load_all(tmp_path)] == [True, False]


def test_links_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "real")
    written(tmp_path / "runs" / ".trash")
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "runs" / "real")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    assert names(tmp_path / "runs") == ["real"]


def test_no_runs_are_an_empty_list_and_no_folder_is_an_error(tmp_path: Path) -> None:
    assert rayfl.load_all(tmp_path) == []
    with pytest.raises(InputError, match="nowhere does not exist: give a run folder"):
        rayfl.load_all(tmp_path / "nowhere")


def test_runs_are_found_in_an_object_store(tmp_path: Path) -> None:
    written(tmp_path / "deep" / "run")
    written(tmp_path / "other")
    found = rayfl.load_all(f"local://{tmp_path}")  # fsspec's own local files, so through the remote back end
    assert [run.config.method.name for run in found] == ["fedavg", "fedavg"]
