"""The experiment on rules for the number of clusters, in small."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from written_runs import write_run

from rayfl.clustering.rules import RULES
from rayfl.config import load_config
from rayfl.results import load_all

FOLDER = Path(__file__).parents[1] / "experiments" / "number_of_clusters"
SETTINGS = """
default: {data: digits, plant: none, clusters: 1, clients: 12, sizes: equal, participation: 1, steps: 10, network: mlp}
settings:
  - {plant: rotation, clusters: 2}
  - {nuisance: 3.0}
"""
PLANTED, ALIKE = "digits-rotation-2-12", "digits-none-1-12 nuisance=3.0"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    return tmp_path / "settings.yaml"


def called(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def test_evidence_has_two_streams_that_differ_in_batches_only_and_rules_are_judged_on_it(
    script, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, judge, report = script("evidence"), script("judge"), script("report")
    monkeypatch.setattr(evidence.make, "__defaults__", ((1, 10),))
    for name in ("evidence", "again"):
        called(evidence, monkeypatch, "--settings", settings, "-o", tmp_path / name, "--seeds", 3)
    one, again = (np.load(tmp_path / name / f"{PLANTED} seed=3.npz") for name in ("evidence", "again"))
    saved = ("clients", "first", "second", "judged", "tree", "losses", "progress")
    assert sorted(one.files) == sorted([f"{what} {n}" for what in saved for n in (1, 10)] + ["truth"])
    for name in one.files:
        np.testing.assert_array_equal(one[name], again[name])
    assert one["first 10"].shape == (12, 11) and one["clients 10"].tolist() == list(range(12))
    apart = np.linalg.norm(one["first 10"] - one["second 10"], axis=1)
    assert (apart > 0).all() and (apart < np.linalg.norm(one["first 10"], axis=1)).all()

    output = tmp_path / "judged.parquet"
    called(judge, monkeypatch, tmp_path / "evidence", "--settings", settings, "-o", output)
    table = pd.read_parquet(output)
    assert len(table) == 2 * (2 * (len(RULES) + 1) + 1)  # settings x (trainings x (rules and utility) and the decision)
    assert {*table["rule"]} == {*RULES, "utility", "decision"}
    found = table[(table["trainings"] == 10) & table["rule"].isin(["agreement", "utility", "bic"])]
    assert found["identifiable"].all() and found["ari"].eq(1).all(), found
    called(judge, monkeypatch, tmp_path / "evidence", "--settings", settings, "-o", output)
    pd.testing.assert_frame_equal(pd.read_parquet(output), table)  # nothing is computed twice

    called(report, monkeypatch, "--judged", output, "--loops", tmp_path / "none", "-o", tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| utility | 10 | 100.0% (2% .. 100%), 1 of 1 | 100.0% (2% .. 100%), 1 of 1 |  |  |" in page


def test_decisions_by_validation_samples_are_compared_with_those_by_training_samples_of_the_same_models(
    script, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, judge, report = script("evidence"), script("judge"), script("report")
    monkeypatch.setattr(evidence.make, "__defaults__", ((5, 10),))
    words = ["--settings", settings, "-o", tmp_path / "evidence", "--seeds", 20, "--validation", 0.25]
    called(evidence, monkeypatch, *words)
    saved = np.load(tmp_path / "evidence" / f"{PLANTED} seed=20.npz")
    assert saved["losses 10"].shape == saved["validated_losses 10"].shape == (12, 11)
    asked = ~np.isnan(saved["losses 10"])
    assert (saved["losses 10"][asked] != saved["validated_losses 10"][asked]).all()
    assert saved["progress 10"].shape == saved["validated_progress 10"].shape == (12, 3)

    output = tmp_path / "judged.parquet"
    rules = ["decision", "decision, as asked", "decision, validation"]
    called(judge, monkeypatch, tmp_path / "evidence", "--settings", settings, "-o", output, "--rules", *rules)
    table = pd.read_parquet(output)
    assert sorted(table["rule"]) == sorted(2 * rules)
    assert table.loc[table["setting"] == PLANTED, "ari"].eq(1).all(), table
    wrong = table["rule"].eq("decision") & table["setting"].eq(ALIKE)
    table.loc[wrong, ["found", "ari"]] = [3, 0.0]
    table.to_parquet(output)
    called(report, monkeypatch, "--judged", output, "--validated", output, "-o", tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| all others | decision | 100.0% (2% .. 100%), 1 of 1 | 0.0% (0% .. 98%), 0 of 1 | 10.0 |" in page
    assert f"| {ALIKE} | 20 | 1 | 3 (0.00) | 1 (1.00) | 1 (1.00) |" in page


def test_as_fedac_asks_only_clients_with_few_training_samples_are_judged_by_validation_samples(script) -> None:
    judge, nothing = script("judge"), np.nan
    arrays = {
        "n_train": np.array([5, 7, 50, 19]),
        "clients 5": np.array([0, 2, 3]),
        "judged 5": np.array([0, 1, 2]),
        "losses 5": np.array([[0.1, nothing], [0.2, 0.3], [0.4, 0.5]]),
        "progress 5": np.array([[1.0, 1.0, 0.5]] * 3),
        "validated_losses 5": np.array([[0.6, nothing], [0.7, 0.8], [nothing, nothing]]),
        "validated_progress 5": np.array([[2.0, 1.0, 0.5]] * 2 + [[nothing, 1.0, 0.5]]),
    }
    losses, initial = judge.answers(arrays, 5, "utility, as asked")
    np.testing.assert_array_equal(losses, [[0.6, nothing], [0.2, 0.3], [0.4, 0.5]])  # client 3 has no such samples
    np.testing.assert_array_equal(initial, [2.0, 1.0, 1.0])
    for rule, first in (("decision", 0.1), ("decision, validation", 0.6)):
        assert judge.answers(arrays, 5, rule)[0][0, 0] == first


def test_the_closed_loop_is_beside_one_cluster_and_the_planted_number(
    script, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_loop, output = script("closed_loop"), tmp_path / "loops.parquet"
    monkeypatch.setattr(closed_loop, "TRAININGS", 21)
    judged = {"setting": PLANTED, "seed": 0, "rule": ["decision", "bic"], "ari": [1.0, 0.5], "identifiable": True}
    pd.DataFrame(judged | {"trainings": 40}).to_parquet(tmp_path / "judged.parquet")
    words = ["--settings", settings, "--judged", tmp_path / "judged.parquet", "-o", output, "--seeds", 0]
    called(closed_loop, monkeypatch, *words, "--rules", "utility", "bic")
    row, other = pd.read_parquet(output).to_dict("records")
    assert (row["at_20"], row["at_end"], row["ari"], row["offline"]) == (2, 2, 1.0, 1.0)
    assert row["told"] > row["one"]
    assert (other["rule"], other["at_end"], other["ari"], other["offline"]) == ("bic", 2, 1.0, 0.5)
    assert (other["told"], other["one"]) == (row["told"], row["one"])
    called(closed_loop, monkeypatch, *words, "--rules", "utility, validation")
    kept = pd.read_parquet(output).iloc[-1]
    assert (kept["rule"], kept["at_end"], kept["ari"]) == ("utility, validation", 2, 1.0)
    assert kept["told"] != row["told"], "clients train on fewer samples"


def test_claims_are_judged_for_all_seeds_and_for_fresh_ones(script) -> None:
    report = script("report")
    decisions = pd.DataFrame({"seed": [0, 10, 0, 10], "planted": [4, 4, 1, 1], "identifiable": True})
    decisions["right"] = [True, False, True, True]
    loop = {"rule": "utility", "seed": [0, 0, 10], "planted": 4, "identifiable": [True, True, False], "at_20": 4}
    loop |= {"at_end": 4, "ari": [1.0, 0.5, 0.5], "offline": [1.0, 1.0, 0.5], "one": 0.8, "told": 0.9}
    lines = report.of_claims(decisions, pd.DataFrame(loop | {"accuracy": [0.9, 0.9, 0.88]})).splitlines()[2:]
    all_runs = [line.split(" | ")[2] for line in lines]
    assert all_runs == ["does not hold", "holds", "holds", "holds", "does not hold"]  # 1 of 2 is within 16 % .. 100 %
    fresh = [line.removesuffix(" |").split(" | ")[4] for line in lines]
    assert fresh == ["does not hold", "holds", "holds", "not run", "does not hold"]


def test_a_part_of_the_clients_per_round_trains_as_often_as_the_marks_say(script, settings: Path, tmp_path: Path):
    found = script("settings").read_settings(settings)[PLANTED]
    words = script("settings").words(found | {"participation": 0.25})
    script("evidence").make(words, tmp_path / "a.npz", trainings=(1,))
    saved = np.load(tmp_path / "a.npz")
    seen = saved["clients 1"]  # four rounds of three clients each
    assert 3 < len(seen) <= 12 and saved["first 1"].shape[0] == len(seen)


def test_every_setting_is_a_config(script) -> None:
    module = script("settings")
    settings = module.read_settings(FOLDER / "settings.yaml")
    assert len(settings) >= 99
    assert {setting["data"] for setting in settings.values()} == {"digits", "mnist", "fashion_mnist", "cifar10"}
    for setting in settings.values():
        assert set(module.FACTORS) <= set(setting)
        load_config(None, module.words(setting))


def test_bounds_of_shares_are_those_of_clopper_and_pearson(script) -> None:
    from scipy.stats import binomtest

    for successes, runs in ((0, 5), (19, 20), (7, 7)):
        exact = binomtest(successes, runs).proportion_ci(method="exact")
        assert script("report").bounds(successes, runs) == pytest.approx((exact.low, exact.high))


def test_seeds_that_the_rule_was_not_chosen_with_are_shown_apart(script) -> None:
    report = script("report")
    runs = [(0, 4, True, False), (report.FRESH, 4, True, True), (report.FRESH + 1, 4, False, False)]
    runs += [(report.FRESH, 1, True, True), (report.FRESH + 1, 1, True, False)]
    frame = pd.DataFrame(runs, columns=["seed", "planted", "identifiable", "right"]).assign(data="mnist")
    last = report.fresh(frame).splitlines()[-1]
    assert last == "| mnist | 100.0% (2% .. 100%), 1 of 1 | 50.0% (1% .. 99%), 1 of 2 |"


def test_long_runs_are_shown_with_their_clusters_over_the_rounds(script, tmp_path: Path) -> None:
    words = ["partition.kind=dirichlet", "partition.alpha=0.1"]
    shown = {"summary": {"clusters": 3, "macro_f1": 0.25, "accuracy_worst10": 0.5}, "overrides": words}
    for seed, last in ((0, 0.75), (1, 0.5)):
        write_run(tmp_path / f"tuned-{seed}", "fedac", seed, [0.1, 0.25, 0.5, last], **shown)
    one = {**shown, "overrides": [*words, "method.tuning=none", "method.clusters=1"]}
    write_run(tmp_path / "one", "fedac", 0, [0.75] * 4, **one)
    without = {name: value for name, value in shown["summary"].items() if name != "clusters"}
    write_run(tmp_path / "alone", "local", 0, [0.25] * 4, overrides=words, summary=without)
    lines = script("report").over_rounds(load_all(tmp_path)).splitlines()
    assert "K after rounds 1, 4 |" in lines[0]
    assert lines[2] == "| Dirichlet 0.1 | fedac none | 1 | 1 | 3, 3 | 75.00 | 25.00 | 50.00 |"
    both = "| 2 | 3, 3; 3, 3 | 45.83 ± 5.89 | 25.00 ± 0.00 | 50.00 ± 0.00 |"  # means of three rounds: 50 and 41.67
    assert lines[3].startswith("| Dirichlet 0.1 | fedac") and lines[3].endswith(both)
    assert lines[4].startswith("| Dirichlet 0.1 | local |  | 1 | none, none | 25.00 |")


def test_judgements_of_runs_with_many_clients_are_shown_with_the_clusters_in_use(script, tmp_path: Path) -> None:
    verdict = {"trainings": 5, "clusters": 3, "supported": [2, 3], "verdict": "not yet", "limit": 2.5}
    extras = [{}, {"judgement": verdict | {"gain": 0.25, "score": 4.0}}, {}]
    extras += [{"judgement": verdict | {"trainings": 10, "verdict": "found", "gain": None, "score": None}}]
    shown = {"clusters": 4, "ari": 0.75}
    run = write_run(tmp_path / "a", "fedac", 7, [0.1, 0.2, 0.3, 0.5], extras=extras, summary=shown)
    lines = script("report").of_judgements([run]).splitlines()
    assert lines[2] == "| 7 | 2 | 5 | 3 (2, 3) | not yet | 25% | 4.0 (2.5) | 4 (0.75) | 4 (0.75) | 0.500 |"
    assert lines[3] == "| 7 | 4 | 10 | 3 (2, 3) | found |  |  | 4 (0.75) | 4 (0.75) | 0.500 |"
    assert len(lines) == 4


def test_no_evidence_is_said_so(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        called(script("judge"), monkeypatch, tmp_path)
    assert ended.value.code == 2 and "has no evidence" in capsys.readouterr().err
