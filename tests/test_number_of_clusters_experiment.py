"""The experiment on rules for the number of clusters, in small."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from rayfl.clustering.rules import RULES
from rayfl.config import load_config

FOLDER = Path(__file__).parents[1] / "experiments" / "number_of_clusters"
SMALL = ["partition.clusters=2", "partition.clients=12", "model.name=mlp", "local.steps=5", "training=loop"]


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import evidence

    return evidence


def test_evidence_has_two_streams_that_differ_in_batches_only_and_rules_are_judged_on_it(evidence, tmp_path: Path):
    for name in ("a 0", "b 0"):
        evidence.make([*SMALL, "seed=3"], tmp_path / f"{name}.npz", trainings=(1, 6))
    one, again = (np.load(tmp_path / f"{name}.npz") for name in ("a 0", "b 0"))
    assert sorted(one.files) == sorted(
        [f"{what} {n}" for what in ("clients", "first", "second") for n in (1, 6)] + ["truth"]
    )
    for name in one.files:
        np.testing.assert_array_equal(one[name], again[name])
    assert one["first 6"].shape == (12, 11) and one["clients 6"].tolist() == list(range(12))
    apart = np.linalg.norm(one["first 6"] - one["second 6"], axis=1)
    assert (apart > 0).all() and (apart < np.linalg.norm(one["first 6"], axis=1)).all()

    command = [sys.executable, str(FOLDER / "judge.py"), str(tmp_path), "-o", str(tmp_path / "judged.parquet")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    table = pd.read_parquet(tmp_path / "judged.parquet")
    assert len(table) == 2 * 2 * len(RULES) and {*table["rule"]} == {*RULES}
    assert table["planted"].eq(2).all()
    found = table[(table["trainings"] == 6) & (table["rule"] == "agreement")]
    assert found["identifiable"].all() and found["ari"].eq(1).all(), said


def test_a_part_of_the_clients_per_round_trains_as_often_as_the_marks_say(evidence, tmp_path: Path) -> None:
    evidence.make([*SMALL, "participation.fraction=0.25"], tmp_path / "a 0.npz", trainings=(1,))
    saved = np.load(tmp_path / "a 0.npz")
    seen = saved["clients 1"]  # four rounds of three clients each
    assert 3 < len(seen) <= 12 and saved["first 1"].shape[0] == len(seen)


def test_every_setting_is_a_config() -> None:
    settings = yaml.safe_load((FOLDER / "settings.yaml").read_text())
    for words in settings["settings"].values():
        load_config(None, [*settings["base"], *words])
    assert len({*map(tuple, settings["settings"].values())}) == len(settings["settings"])


def test_no_evidence_is_said_so(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "judge.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "has no evidence" in done.stderr
