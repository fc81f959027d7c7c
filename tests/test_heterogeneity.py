"""The settings of papers as YAML files that run, and the gallery in the documentation."""

import re
from pathlib import Path

import numpy as np
import pytest

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.simulation.preparation import prepare
from rayfl.simulation.screen import Screen

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "experiments" / "heterogeneity").glob("*.yaml"))
SHORT = ["rounds=2", "evaluate.every=1", "federation=serial", "model.name=mlp", "local.steps=2", "output.models=none"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_of_a_paper_runs_on_the_digits(file: Path, tmp_path: Path) -> None:
    run = simulate(load_config(file, [*SHORT, f"output.dir={tmp_path}"]), Screen(quiet=True))
    assert run.rounds["accuracy"].notna().all()
    assert run.clients["true_cluster"].nunique() > 1


def test_staggered_changes_come_one_after_the_other() -> None:
    file = ROOT / "experiments" / "heterogeneity" / "feddrift_staggered.yaml"
    partition = prepare(load_config(file, ["federation=serial", "model.name=mlp"])).partition
    moved = [int((partition.true_cluster_at(n) != partition.true_cluster).sum()) for n in (10, 11, 21, 30, 40)]
    assert moved[0] == 0
    assert moved == sorted(moved) and len(set(moved)) >= 4


def test_all_experiments_of_papers_are_there() -> None:
    stems = {file.stem for file in FILES}
    named = {
        "cfl_gp_rotations",
        "fedgwc_blur_noise",
        "fedrc_three_shifts",
        "feddrift_staggered",
        "pacfl_unseen_clients",
    }
    assert named <= stems


def test_every_picture_of_the_gallery_is_there_and_small() -> None:
    page = (ROOT / "docs" / "heterogeneity.md").read_text()
    named = re.findall(r"\]\((images/heterogeneity/[\w.]+)\)", page)
    assert len(named) >= 18
    for name in named:
        assert 0 < (ROOT / "docs" / name).stat().st_size < 60_000
    there = {path.name for path in (ROOT / "docs" / "images" / "heterogeneity").iterdir()}
    assert there == {Path(name).name for name in named}


def test_every_example_of_the_page_is_a_partition() -> None:
    from rayfl.config import partition_config
    from rayfl.input_tree import load_yaml

    page = (ROOT / "docs" / "heterogeneity.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        tree = load_yaml(block, "an example")
        assert isinstance(tree, dict)
        found = partition_config(**({"kind": "composed"} | tree.get("partition", tree)))
        assert found.kind in ("composed", "file")
    assert np.all([part in page for part in ("saturation", "power_law", "cluster_classes", "every: 40")])
