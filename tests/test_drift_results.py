"""Results under drift: the truth of the round, who changed, and how many rounds it takes until a metric is back."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import SmallRuns, rewrite, small_run

from rayfl.analysis import views
from rayfl.analysis.comparison import compare_runs
from rayfl.analysis.comparison_tables import render
from rayfl.analysis.report.report import report_html
from rayfl.analysis.report.study import make_study
from rayfl.analysis.truth import adjusted_rand
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.data import Change
from rayfl.federation.serial import SerialFederation
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import RoundRecord, Server

SMALL = ["model.name=mlp", "partition.clients=8", "local.steps=2", "federation=serial", "rounds=5"]


@pytest.fixture(scope="module")
def changing() -> tuple[list[RoundRecord], list[np.ndarray]]:
    """Clients 0 and 1 go from cluster 0 to 2 in round 3, and 0 comes back in round 5; client 7 comes in round 4."""
    words = ["method.name=ifca", "method.clusters=4", "arrive.clients=[7]", "arrive.round=4", "arrive.tune=[0]"]
    p = prepare(load_config(None, [*SMALL, *words]))
    changes = (
        Change(3, np.array([0, 1, 7]), np.array([2, 2, 1]), np.array([2, 2, 1])),
        Change(5, np.array([0]), np.array([0]), np.array([0])),
    )
    partition = replace(p.partition, changes=changes)
    fed = SerialFederation(p.facts, Worker(p.config, p.dataset, partition))
    try:
        server = Server(p.config, fed, partition.true_cluster, partition.changes)
        records, assignments = [], []
        for number in range(1, 6):
            records.append(server.run_round(number))
            assignments.append(server.method.assignment().copy())
    finally:
        fed.close()
    return records, assignments


def test_each_row_has_the_planted_cluster_of_its_round(changing: tuple[list[RoundRecord], list[np.ndarray]]) -> None:
    truth = [record.clients["true_cluster"].tolist() for record in changing[0]]
    assert truth == [
        [0, 0, 1, 1, 2, 2, 3],
        [0, 0, 1, 1, 2, 2, 3],
        [2, 2, 1, 1, 2, 2, 3],
        [2, 2, 1, 1, 2, 2, 3, 1],
        [0, 2, 1, 1, 2, 2, 3, 1],
    ]
    newcomers = changing[0][3].newcomers
    assert newcomers is not None
    assert newcomers["true_cluster"].tolist() == [1]


def test_agreement_is_with_the_truth_of_the_round(changing: tuple[list[RoundRecord], list[np.ndarray]]) -> None:
    for record, assignment in zip(*changing, strict=True):
        who = record.clients["client"]
        expected = adjusted_rand(record.clients["true_cluster"], assignment[who])
        assert record.summary["ari"] == pytest.approx(expected)


def test_extras_say_how_many_of_those_who_are_there_changed(
    changing: tuple[list[RoundRecord], list[np.ndarray]],
) -> None:
    assert [record.extras.get("changed") for record in changing[0]] == [None, None, 2, None, 1]


# -- rounds to recovery ------------------------------------------------------------------------------------------

Drifting = Callable[..., Run]


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Drifting:
    """A run whose tables are written over: these accuracies, and clients that change in these rounds."""
    folder = tmp_path_factory.mktemp("drifting")

    def make(accuracy: Sequence[float], changed: dict[int, int], **columns: Sequence[float]) -> Run:
        keys = [f"rounds={len(accuracy)}", "local.steps=1", "evaluate.every=20"]
        run = small_run(folder, "ifca", *keys, f"seed={len(list(folder.iterdir()))}")
        extras = [json.dumps({"changed": changed[n]} if n in changed else {}) for n in range(1, len(accuracy) + 1)]
        return rewrite(run, "rounds", lambda rows: rows.assign(accuracy=accuracy, extras=extras, **columns))

    return make


def test_a_metric_is_back_when_it_is_near_its_mean_before_the_change(drifting: Drifting) -> None:
    """Before round 5 the mean of three is 0.80: 0.795 in round 8 is within 0.01 of it."""
    run = drifting([0.5, 0.7, 0.8, 0.9, 0.3, 0.6, 0.78, 0.795, 0.9], {5: 4})
    (row,) = views.drifts(run).to_dict("records")
    assert row == {
        "round": 5,
        "until": 5,
        "changed": 4,
        "before": pytest.approx(0.8),
        "worst": 0.3,
        "rounds_to_recovery": 3,
    }
    assert views.drifts(run, tolerance=0.001)["rounds_to_recovery"].tolist() == [4]
    assert views.drifts(run, window=1)["rounds_to_recovery"].tolist() == [4]
    assert views.drifts(run, window=1, tolerance=0.7)["rounds_to_recovery"].tolist() == [0]


def test_what_is_never_back_is_nan_and_a_gradual_drift_is_one(drifting: Drifting) -> None:
    run = drifting([0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.8, 0.8, 0.2, 0.3], {4: 1, 5: 1, 6: 2, 9: 3})
    found = views.drifts(run)
    assert found["round"].tolist() == [4, 9]
    assert found["until"].tolist() == [6, 9]
    assert found["changed"].tolist() == [4, 3]
    assert found["rounds_to_recovery"].tolist()[0] == 3
    assert math.isnan(found["rounds_to_recovery"][1])


def test_only_evaluated_rounds_count_and_a_change_before_any_has_no_row(drifting: Drifting) -> None:
    nan = math.nan
    run = drifting([nan, 0.8, nan, 0.8, nan, 0.5, nan, 0.8], {1: 2, 5: 2})
    assert views.drifts(run)[["round", "before", "rounds_to_recovery"]].to_numpy().tolist() == [[5, 0.8, 3]]


def test_a_loss_is_back_when_it_has_fallen_again(drifting: Drifting) -> None:
    run = drifting([0.5] * 5, {3: 1}, loss=[1.0, 0.4, 0.9, 0.705, 0.70])
    (row,) = views.drifts(run, "loss").to_dict("records")
    assert (row["before"], row["worst"], row["rounds_to_recovery"]) == (pytest.approx(0.7), 0.9, 1)


def test_runs_without_changes_have_no_drifts(runs: SmallRuns) -> None:
    assert views.drifts(runs.fedavg[0]).empty
    assert "made up for" not in render(compare_runs(runs.fedavg))
    assert "rounds to recovery" not in report_html(make_study(runs.fedavg, None, None, None))


def test_comparisons_and_reports_show_how_soon_metrics_are_back(drifting: Drifting, tmp_path: Path) -> None:
    ari = [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    run = drifting([0.8, 0.8, 0.5, 0.6, 0.8, 0.8], {3: 4}, ari=ari)
    comparison = compare_runs([run])
    (row,) = comparison.summary.to_dict("records")
    assert (row["recovered"], row["rounds_to_recovery"], row["ari_recovered"]) == (1.0, 2.0, 0.0)
    assert math.isnan(row["ari_rounds_to_recovery"])
    assert "after clients change cluster" in render(comparison)
    assert "rounds to recovery" in report_html(make_study([run], None, None, None))


def test_views_take_the_last_planted_cluster_of_a_client(runs: SmallRuns, tmp_path: Path) -> None:
    run = small_run(tmp_path, "ifca", "method.clusters=2", "rounds=2")
    moved = rewrite(
        run,
        "clients",
        lambda rows: rows.assign(true_cluster=pd.Series(rows["true_cluster"]).where(rows["round"] < 2, 1)),
    )
    assert set(views.last_truth(moved)) == {1}
    assert views.clients_at(moved, 1)["true_cluster"].nunique() == 2


def test_rounds_before_newcomers_come_are_complete_too(tmp_path: Path) -> None:
    run = small_run(tmp_path, "ifca", "method.clusters=2", "rounds=3", "arrive.count=2", "arrive.round=3")
    assert views.complete_rounds(run) == [1, 2, 3]
    assert set(views.flows(run)["previous"]) == {1, 2}
