"""Views: tidy tables from real small runs, compared with the Parquet and with numbers worked out by hand."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from small_runs import SmallRuns, read, rewrite, small_run, with_recoveries

from rayfl.analysis import views
from rayfl.analysis.labels import labels
from rayfl.errors import InputError
from rayfl.results import Run

# -- how good models are ------------------------------------------------------------------------------------------


def test_curves_are_the_mean_and_deviation_over_seeds_of_the_tables(runs: SmallRuns) -> None:
    found = views.curves([*runs.fedavg, runs.fedac], "accuracy")
    one, two = (read(run, "rounds").sort_values("round")["accuracy"].to_numpy() for run in runs.fedavg)
    mine = found[found["label"] == "fedavg"]
    assert mine["round"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(mine["mean"], (one + two) / 2)
    half = np.abs(one - two) / np.sqrt(2)  # the sample deviation of two numbers
    np.testing.assert_allclose(mine["low"], (one + two) / 2 - half)
    np.testing.assert_allclose(mine["high"], (one + two) / 2 + half)
    assert mine["n"].tolist() == [2, 2, 2]
    assert found["label"].drop_duplicates().tolist() == ["fedavg", "fedac"]


def test_the_band_may_be_the_range(runs: SmallRuns) -> None:
    found = views.curves(runs.fedavg, "loss", band="range")
    both = np.stack([read(run, "rounds").sort_values("round")["loss"] for run in runs.fedavg])
    np.testing.assert_allclose(found["low"], both.min(axis=0))
    np.testing.assert_allclose(found["high"], both.max(axis=0))


def test_curves_of_one_run_have_a_band_without_width(runs: SmallRuns) -> None:
    found = views.curves([runs.fedac])
    assert (found["low"] == found["high"]).all()
    assert (found["n"] == 1).all()
    assert found["std"].isna().all()


def test_curves_take_metrics_from_extras_and_leave_out_runs_without_them(runs: SmallRuns) -> None:
    found = views.curves([runs.fedac, *runs.fedavg], "centre_accuracy")
    expected = [json.loads(text)["centre_accuracy"] for text in read(runs.fedac, "rounds").sort_values("round").extras]
    assert found["label"].unique().tolist() == ["fedac"]
    np.testing.assert_allclose(found["mean"], expected)


def test_rounds_without_evaluation_are_not_in_a_curve(runs: SmallRuns) -> None:
    assert views.curves([runs.sparse])["round"].tolist() == [2, 4, 5]


def test_an_unknown_metric_is_refused_with_the_nearest_name(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"metric='acuracy': no run has it \(did you mean 'accuracy'\?\)"):
        views.curves([runs.fedac], "acuracy")
    assert "judgement" in runs.fedac.extras  # but not a number
    with pytest.raises(InputError, match=r"metric='judgement': no run has it") as told:
        views.curves([runs.fedac], "judgement")
    assert "centre_accuracy" in str(told.value) and "judgement," not in str(told.value).partition("there are")[2]


def test_runs_that_have_not_begun_give_empty_tables(runs: SmallRuns) -> None:
    assert views.curves([runs.unbegun]).columns.tolist() == ["label", "round", "mean", "low", "high", "std", "n"]
    for empty in (
        views.curves([runs.unbegun]),
        views.final([runs.unbegun]),
        views.sensitivity([runs.unbegun], "method.clusters"),
        views.client_distribution([runs.unbegun]),
        views.worst_clients([runs.unbegun]),
        views.cluster_sizes(runs.unbegun),
        views.cluster_summary(runs.unbegun),
        views.moves(runs.unbegun),
        views.flows(runs.unbegun),
        views.contingency(runs.unbegun),
        views.granularity(runs.unbegun),
        views.granularity_by_number([runs.unbegun]),
        views.tuning(runs.unbegun),
        views.hopkins(runs.unbegun),
        views.cost([runs.unbegun]),
        views.time_to_target([runs.unbegun], 0.5),
        views.recoveries(runs.unbegun),
        views.similarity(runs.unbegun),
    ):
        assert len(empty) == 0


def test_final_is_the_last_evaluated_round(runs: SmallRuns) -> None:
    found = views.final(runs.fedavg, ["macro_f1", "accuracy"]).set_index("metric")
    last = [read(run, "rounds").set_index("round").loc[3] for run in runs.fedavg]
    for metric in ("macro_f1", "accuracy"):
        assert found.loc[metric, "mean"] == pytest.approx(np.mean([row[metric] for row in last]))
        assert found.loc[metric, "std"] == pytest.approx(np.std([row[metric] for row in last], ddof=1))


def test_paired_differences_are_between_runs_of_one_seed(runs: SmallRuns) -> None:
    found = views.paired_differences([*runs.fedavg, *runs.ifca], "fedavg")
    assert found["label"].tolist() == ["ifca", "ifca"]
    assert found["seed"].tolist() == [0, 1]
    for row, base, other in zip(found.itertuples(), runs.fedavg, runs.ifca, strict=True):
        expected = [read(run, "rounds").set_index("round").loc[3, "accuracy"] for run in (other, base)]
        assert (row.value, row.baseline, row.round) == (*expected, 3)
        assert row.difference == pytest.approx(expected[0] - expected[1])


def test_a_run_is_paired_at_the_last_round_that_both_have(runs: SmallRuns) -> None:
    found = views.paired_differences([runs.fedavg[0], runs.sparse], runs_label(runs.fedavg[0], runs.sparse))
    # The baseline has rounds 1 to 3, the other was evaluated in 2, 4 and 5.
    assert found["round"].tolist() == [2]
    assert found["value"].tolist() == [read(runs.sparse, "rounds").set_index("round").loc[2, "accuracy"]]


def runs_label(*runs: Run) -> str:
    return str(labels(runs)[0])


def test_each_setting_has_its_own_baseline(runs: SmallRuns) -> None:
    found = views.paired_differences([runs.iid_fedavg, runs.iid_ifca, runs.fedavg[0], runs.ifca[0]], "fedavg")
    assert len(found) == 2
    expected = {run.path: read(run, "rounds").set_index("round")["accuracy"][3] for run in runs.everything}
    assert found["baseline"].tolist() == [expected[runs.iid_fedavg.path], expected[runs.fedavg[0].path]]


def test_runs_without_a_partner_of_their_seed_are_left_out(runs: SmallRuns) -> None:
    assert views.paired_differences([runs.fedavg[0], *runs.ifca], "fedavg")["seed"].tolist() == [0]


def test_an_unknown_baseline_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"baseline='fedag': no run is called that \(did you mean 'fedavg'\?\)"):
        views.paired_differences(runs.fedavg, "fedag")


def test_sensitivity_groups_runs_by_the_values_of_a_key(runs: SmallRuns) -> None:
    found = views.sensitivity([*runs.ifca, runs.ifca_of_five], "method.clusters")
    assert found["label"].unique().tolist() == ["ifca"]
    assert found["value"].tolist() == [2, 5]
    assert found["n"].tolist() == [2, 1]
    expected = np.mean([read(run, "rounds").set_index("round").loc[3, "accuracy"] for run in runs.ifca])
    assert found["mean"].iloc[0] == pytest.approx(expected)


def test_a_key_that_no_run_has_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"key='method.nu': no run's config has it"):
        views.sensitivity([runs.fedac], "method.nu")


# -- clients --------------------------------------------------------------------------------------------------


def test_the_distribution_has_every_client_at_the_last_round(runs: SmallRuns) -> None:
    found = views.client_distribution([runs.fedac], "accuracy")
    expected = read(runs.fedac, "clients").query("round == 3").sort_values("client")
    assert found["value"].tolist() == expected["accuracy"].tolist()
    assert found["client"].tolist() == list(range(8))


def test_the_worst_clients_are_those_with_the_greatest_loss_or_the_least_accuracy(runs: SmallRuns) -> None:
    last = read(runs.fedac, "clients").query("round == 3")
    accuracy = views.worst_clients([runs.fedac], "accuracy", 3)["value"].tolist()
    loss = views.worst_clients([runs.fedac], "loss", 2)["value"].tolist()
    assert accuracy == sorted(last["accuracy"])[:3]
    assert loss == sorted(last["loss"], reverse=True)[:2]


def test_a_metric_that_clients_do_not_have_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match="metric='ari': the table of clients does not have it"):
        views.client_distribution([runs.fedac], "ari")


# -- what methods decide by ---------------------------------------------------------------------------------------


def test_granularity_is_that_of_the_clusters_table_with_the_thresholds_of_the_config(runs: SmallRuns) -> None:
    found = views.granularity(runs.granular)
    expected = read(runs.granular, "clusters").sort_values(["round", "cluster"])
    assert found["granularity"].tolist() == expected["granularity"].dropna().tolist()
    assert set(found["merge_below"]) == {0.25}
    assert set(found["split_above"]) == {0.8}


def test_a_run_that_does_not_tune_by_granularity_has_no_thresholds(runs: SmallRuns) -> None:
    assert views.granularity(runs.fedac)["merge_below"].isna().all()


def test_granularity_against_the_number_of_clusters_is_that_of_the_last_round(runs: SmallRuns) -> None:
    found = views.granularity_by_number([runs.fixed])
    last = read(runs.fixed, "clusters").query("round == 3")["granularity"]
    assert found["clusters"].tolist() == [3]
    assert found["n"].tolist() == [len(last)]
    assert found.loc[0, "mean"] == pytest.approx(last.mean())
    assert found.loc[0, "variance"] == pytest.approx(((last - last.mean()) ** 2).mean())


def test_a_single_cluster_has_no_granularity(runs: SmallRuns) -> None:
    assert read(runs.granular, "clusters").query("round == 3")["granularity"].isna().all()
    assert views.granularity_by_number([runs.granular]).empty


def test_tuning_shows_the_number_of_clusters_before_and_after(runs: SmallRuns) -> None:
    found = views.tuning(runs.granular)
    extras = [json.loads(text) for text in read(runs.granular, "rounds").sort_values("round").extras]
    assert found["before"].tolist() == [e["clusters_before_tuning"] for e in extras]
    assert found["after"].tolist() == [e["clusters_after_tuning"] for e in extras]


def test_hopkins_has_the_statistic_and_what_it_led_to(runs: SmallRuns) -> None:
    found = views.hopkins(runs.fedtsdp)
    extras = [json.loads(text) for text in read(runs.fedtsdp, "rounds").sort_values("round").extras]
    assert found["hopkins"].tolist() == [e["hopkins"] for e in extras]
    assert found["clustered"].tolist() == (found["hopkins"] > 0.3).tolist()
    assert set(found["threshold"]) == {0.3}
    shared = [e["shared_layers"] for e in extras]
    assert found["shrunk"].tolist() == [False, *(b < a for a, b in pairwise(shared))]
    assert found["shrunk"].any()
    assert found["value"].tolist() == read(runs.fedtsdp, "rounds").sort_values("round")["accuracy"].tolist()


# -- costs ------------------------------------------------------------------------------------------------------


def test_cost_counts_rounds_without_evaluation_too(runs: SmallRuns) -> None:
    found, rounds = views.cost([runs.sparse]), read(runs.sparse, "rounds").sort_values("round")
    assert found["round"].tolist() == [2, 4, 5]
    total = (rounds["bytes_up"] + rounds["bytes_down"]).cumsum().tolist()
    assert found["bytes"].tolist() == [total[1], total[3], total[4]]
    assert found["seconds"].iloc[-1] == pytest.approx(rounds["seconds_total"].sum())
    assert found["value"].tolist() == rounds["accuracy"].dropna().tolist()


def test_time_to_target_is_the_first_round_that_reaches_it(runs: SmallRuns) -> None:
    accuracy = read(runs.fedavg[0], "rounds").sort_values("round")["accuracy"].tolist()
    first = next(i for i, value in enumerate(accuracy) if value >= accuracy[-1])
    found = views.time_to_target(runs.fedavg[:1], accuracy[-1]).iloc[0]
    assert found["reached"]
    assert found["round"] == first + 1
    assert found["bytes"] == views.cost(runs.fedavg[:1])["bytes"].iloc[first]


def test_a_target_out_of_reach_has_no_time(runs: SmallRuns) -> None:
    found = views.time_to_target(runs.fedavg, 1.1)
    assert not found["reached"].any()
    assert found[["round", "bytes", "seconds"]].isna().all(axis=None)


def test_a_loss_reaches_its_target_from_above(runs: SmallRuns) -> None:
    loss = read(runs.fedavg[0], "rounds").set_index("round")["loss"]
    assert views.time_to_target(runs.fedavg[:1], loss[1] + 1e-9, "loss")["round"].tolist() == [1]


def test_recoveries_are_listed_with_their_rounds(runs: SmallRuns, tmp_path: Path) -> None:
    found = views.recoveries(with_recoveries(tmp_path))
    assert found.values.tolist() == [[2, "went on with 1 actor"], [2, "and again"]]
    assert views.recoveries(runs.fedavg[0]).empty


def test_a_run_that_was_cut_off_gives_the_rounds_that_it_has(runs: SmallRuns, tmp_path: Path) -> None:
    run = small_run(tmp_path, "ifca", "rounds=3", "method.clusters=2")
    for name in ("rounds", "clients", "clusters"):
        cut = rewrite(run, name, lambda rows: rows[rows["round"] <= 2])
    assert not cut.finished
    assert views.curves([cut])["round"].tolist() == [1, 2]
    assert views.cluster_summary(cut)["round"].tolist() == [1, 2]
    assert views.flows(cut)["round"].unique().tolist() == [2]
