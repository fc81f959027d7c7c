"""What the README says was run: its YAML, its Python and its method of one's own are taken from its very text."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

import rayfl
from rayfl.config import load_config
from rayfl.methods import METHODS, method_options
from rayfl.results import Run

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(language: str, holding: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    (found,) = [b for b in blocks if holding in b]
    return found


def test_the_yaml_is_ten_lines_and_valid() -> None:
    text = block("yaml", "mine.yaml")
    assert len(text.strip().splitlines()) <= 10
    config = load_config(yaml.safe_load(text))
    assert method_options(config.method).model_dump()["mu"] == 1.0


def test_the_python_use_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block("python", "rayfl.run(").replace("rounds=30", "rounds=2"))
    assert "clusters" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    snippet = block("python", "rayfl.load(")
    scope: dict = {}
    exec(re.sub(r'"runs/[^"]+"', repr(str(folder)), snippet), scope)
    assert isinstance(scope["run"], Run)
    assert len(pd.read_parquet(folder / "rounds")) == 2


@pytest.mark.parametrize("federation", ["serial", "ray"])
def test_the_method_of_ones_own_runs_by_import_path(
    own_code: Callable[[str, str], None], simulate_quietly: Callable[..., Run], ray_session: None, federation: str
) -> None:
    own_code("my_median", block("python", "class Median"))
    run = simulate_quietly(
        "rounds=6",
        "method.name=my_median:Median",
        f"federation={federation}",
        "partition.kind=iid",
        "local.lr=0.2",
        "ray.actors=2",
    )
    assert run.rounds["accuracy"].iloc[-1] > 0.8 > run.rounds["accuracy"].iloc[0]


def test_the_table_of_methods_is_complete() -> None:
    table = README.partition("## Methods")[2].partition("## A method")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == list(METHODS)


def test_every_command_is_there() -> None:
    from typer.testing import CliRunner

    from rayfl.cli import app

    listed = CliRunner().invoke(app, ["--help"]).output
    for command in set(re.findall(r"^ {4}rayfl (\w+)", README, re.M)):
        assert command in listed


def test_the_version_is_in_one_place() -> None:
    from importlib.metadata import version

    assert rayfl.__version__ == version("rayfl")
