"""Views: tidy tables from real small runs, compared with the Parquet and with numbers worked out by hand."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import SmallRuns, rewrite, small_run, with_recoveries

import rayfl
from rayfl.analysis import views
from rayfl.analysis.labels import labels
from rayfl.analysis.truth import adjusted_rand
from rayfl.errors import InputError
from rayfl.results import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    return SmallRuns(tmp_path_factory.mktemp("runs"))


def table(run: Run, name: str) -> pd.DataFrame:
    """Read a table without rayfl."""
    return pd.read_parquet(f"{run.path}/{name}")


# -- how good models are ------------------------------------------------------------------------------------------


def test_curves_are_the_mean_and_deviation_over_seeds_of_the_tables(runs: SmallRuns) -> None:
    found = views.curves([*runs.fedavg, runs.fedac], "accuracy")
    one, two = (table(run, "rounds").sort_values("round")["accuracy"].to_numpy() for run in runs.fedavg)
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
    both = np.stack([table(run, "rounds").sort_values("round")["loss"] for run in runs.fedavg])
    np.testing.assert_allclose(found["low"], both.min(axis=0))
    np.testing.assert_allclose(found["high"], both.max(axis=0))


def test_curves_of_one_run_have_a_band_without_width(runs: SmallRuns) -> None:
    found = views.curves([runs.fedac])
    assert (found["low"] == found["high"]).all()
    assert (found["n"] == 1).all()
    assert found["std"].isna().all()


def test_curves_take_metrics_from_extras_and_leave_out_runs_without_them(runs: SmallRuns) -> None:
    found = views.curves([runs.fedac, *runs.fedavg], "centre_accuracy")
    expected = [json.loads(text)["centre_accuracy"] for text in table(runs.fedac, "rounds").sort_values("round").extras]
    assert found["label"].unique().tolist() == ["fedac"]
    np.testing.assert_allclose(found["mean"], expected)


def test_rounds_without_evaluation_are_not_in_a_curve(runs: SmallRuns) -> None:
    assert views.curves([runs.sparse])["round"].tolist() == [2, 4, 5]


def test_an_unknown_metric_is_refused_with_the_nearest_name(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"metric='acuracy': no run has it \(did you mean 'accuracy'\?\)"):
        views.curves([runs.fedac], "acuracy")


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
    last = [table(run, "rounds").set_index("round").loc[3] for run in runs.fedavg]
    for metric in ("macro_f1", "accuracy"):
        assert found.loc[metric, "mean"] == pytest.approx(np.mean([row[metric] for row in last]))
        assert found.loc[metric, "std"] == pytest.approx(np.std([row[metric] for row in last], ddof=1))


def test_paired_differences_are_between_runs_of_one_seed(runs: SmallRuns) -> None:
    found = views.paired_differences([*runs.fedavg, *runs.ifca], "fedavg")
    assert found["label"].tolist() == ["ifca", "ifca"]
    assert found["seed"].tolist() == [0, 1]
    for row, base, other in zip(found.itertuples(), runs.fedavg, runs.ifca, strict=True):
        expected = [table(run, "rounds").set_index("round").loc[3, "accuracy"] for run in (other, base)]
        assert (row.value, row.baseline, row.round) == (*expected, 3)
        assert row.difference == pytest.approx(expected[0] - expected[1])


def test_a_run_is_paired_at_the_last_round_that_both_have(runs: SmallRuns) -> None:
    found = views.paired_differences([runs.fedavg[0], runs.sparse], runs_label(runs.fedavg[0], runs.sparse))
    # The baseline has rounds 1 to 3, the other was evaluated in 2, 4 and 5.
    assert found["round"].tolist() == [2]
    assert found["value"].tolist() == [table(runs.sparse, "rounds").set_index("round").loc[2, "accuracy"]]


def runs_label(*runs: Run) -> str:
    return str(labels(runs)[0])


def test_each_setting_has_its_own_baseline(runs: SmallRuns) -> None:
    found = views.paired_differences([runs.iid_fedavg, runs.iid_ifca, runs.fedavg[0], runs.ifca[0]], "fedavg")
    assert len(found) == 2
    expected = {run.path: table(run, "rounds").set_index("round")["accuracy"][3] for run in runs.everything}
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
    expected = np.mean([table(run, "rounds").set_index("round").loc[3, "accuracy"] for run in runs.ifca])
    assert found["mean"].iloc[0] == pytest.approx(expected)


def test_a_key_that_no_run_has_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"key='method.nu': no run's config has it"):
        views.sensitivity([runs.fedac], "method.nu")


# -- clients --------------------------------------------------------------------------------------------------


def test_the_distribution_has_every_client_at_the_last_round(runs: SmallRuns) -> None:
    found = views.client_distribution([runs.fedac], "accuracy")
    expected = table(runs.fedac, "clients").query("round == 3").sort_values("client")
    assert found["value"].tolist() == expected["accuracy"].tolist()
    assert found["client"].tolist() == list(range(8))


def test_the_worst_clients_are_those_with_the_greatest_loss_or_the_least_accuracy(runs: SmallRuns) -> None:
    last = table(runs.fedac, "clients").query("round == 3")
    accuracy = views.worst_clients([runs.fedac], "accuracy", 3)["value"].tolist()
    loss = views.worst_clients([runs.fedac], "loss", 2)["value"].tolist()
    assert accuracy == sorted(last["accuracy"])[:3]
    assert loss == sorted(last["loss"], reverse=True)[:2]


def test_a_metric_that_clients_do_not_have_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match="metric='ari': the table of clients does not have it"):
        views.client_distribution([runs.fedac], "ari")


# -- clusters -------------------------------------------------------------------------------------------------


def test_cluster_sizes_add_up_to_the_clients_that_have_a_cluster(runs: SmallRuns) -> None:
    sizes = views.cluster_sizes(runs.fedac).groupby("round")["size"].sum()
    assert sizes.to_dict() == {1: 8, 2: 8, 3: 8}


def test_the_summary_has_the_numbers_of_the_rounds_table(runs: SmallRuns) -> None:
    found, expected = views.cluster_summary(runs.fedac), table(runs.fedac, "rounds").sort_values("round")
    for name in ("clusters", "largest_share", "ari", "nmi", "misclustering"):
        assert found[name].tolist() == expected[name].tolist()


@pytest.mark.parametrize("view", [views.cluster_sizes, views.cluster_summary, views.moves, views.flows])
def test_a_method_without_clusters_gives_an_empty_table(runs: SmallRuns, view: Callable[[Run], pd.DataFrame]) -> None:
    without, having = view(runs.local), view(runs.fedac)
    assert len(without) == 0
    assert list(without.columns) == list(having.columns) or view is views.moves


def test_moves_are_the_clusters_of_the_clients_table(runs: SmallRuns) -> None:
    found = views.moves(runs.ifca[0])
    for row in table(runs.ifca[0], "clients").itertuples():
        assert found.loc[row.client, row.round] == row.cluster


def test_moves_do_not_guess_where_clients_are_that_did_not_train(runs: SmallRuns) -> None:
    found, clients = views.moves(runs.sparse), table(runs.sparse, "clients")
    trained = clients[clients["round"] == 3]["client"]
    assert len(trained) == 4
    assert found[3].notna().sum() == 4
    assert found.loc[trained, 3].notna().all()
    assert found[2].notna().sum() == clients[clients["round"] == 2]["cluster"].notna().sum() > 4


def test_flows_count_every_client_between_two_rounds_that_have_all(runs: SmallRuns) -> None:
    found = views.flows(runs.sparse)
    assert found[["previous", "round"]].drop_duplicates().values.tolist() == [[2, 4], [4, 5]]
    assert found.groupby("round")["count"].sum().tolist() == [8, 8]
    where, found = views.moves(runs.sparse).fillna(-1), found.fillna({"source": -1, "target": -1})
    for row in found.itertuples():
        assert row.count == ((where[row.previous] == row.source) & (where[row.round] == row.target)).sum()


def test_a_contingency_table_agrees_with_the_rand_index_of_the_run(runs: SmallRuns) -> None:
    found = views.contingency(runs.fedac)
    true = np.repeat(found.index.to_numpy(), found.sum(axis=1))
    mine = np.concatenate([np.repeat(found.columns.to_numpy(), row) for row in found.to_numpy()])
    assert adjusted_rand(true, mine) == pytest.approx(runs.fedac.rounds["ari"].iloc[-1])
    assert found.to_numpy().sum() == 8


def test_a_contingency_table_has_its_best_match_on_the_diagonal(runs: SmallRuns) -> None:
    found = views.contingency(runs.fedac).to_numpy()
    correct = round((1 - runs.fedac.rounds["misclustering"].iloc[-1]) * 8)
    assert np.diag(found).sum() == correct


def test_a_run_without_planted_clusters_has_an_empty_contingency_table(runs: SmallRuns) -> None:
    assert views.contingency(runs.iid_ifca).empty
    assert views.cluster_summary(runs.iid_ifca)["ari"].isna().all()


def test_a_round_that_is_not_there_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match=r"round=9: the run in .* has the rounds 1 to 3"):
        views.contingency(runs.fedac, round=9)


# -- matrices and samples ---------------------------------------------------------------------------------------


def test_the_similarity_matrix_is_what_the_method_reported_in_order_of_clusters(runs: SmallRuns) -> None:
    found = views.similarity(runs.fedac)
    reported = np.array(json.loads(table(runs.fedac, "rounds").set_index("round").loc[3, "extras"])["similarity"])
    np.testing.assert_array_equal(found.values, reported[np.ix_(found.members, found.members)])
    last = table(runs.fedac, "clients").query("round == 3").set_index("client")
    assert found.cluster.tolist() == last.loc[found.members, "cluster"].tolist()
    assert found.truth.tolist() == last.loc[found.members, "true_cluster"].tolist()
    assert (np.diff(found.cluster) >= 0).all()
    assert found.is_similarity


def test_a_matrix_can_be_put_in_order_of_clients_or_of_the_planted_clusters(runs: SmallRuns) -> None:
    assert views.similarity(runs.fedac, order="client").members.tolist() == list(range(8))
    assert (np.diff(views.similarity(runs.fedac, order="truth").truth) >= 0).all()


def test_divergences_are_between_the_clients_that_took_part(runs: SmallRuns) -> None:
    found = views.similarity(runs.fedtsdp, round=2, order="client")
    reported = json.loads(table(runs.fedtsdp, "rounds").set_index("round").loc[2, "extras"])["divergence"]
    assert found.members.tolist() == reported["clients"]
    np.testing.assert_array_equal(found.values, reported["matrix"])
    assert not found.is_similarity


def test_a_run_that_reports_no_matrix_has_one_of_nobody(runs: SmallRuns) -> None:
    assert views.similarity(runs.fedavg[0]).values.shape == (0, 0)


def test_the_centres_of_clusters_are_compared_by_their_weights(runs: SmallRuns) -> None:
    found = views.centre_similarity(runs.ifca[0])
    vectors = [
        np.concatenate([p.detach().numpy().ravel() for p in runs.ifca[0].model(cluster=int(k)).parameters()])
        for k in found.members
    ]
    one, two = vectors[:2]
    assert found.values[0, 1] == pytest.approx(one @ two / np.sqrt(one @ one * (two @ two)), rel=1e-5)
    np.testing.assert_allclose(np.diag(found.values), 1)


def test_labels_dealt_again_are_those_of_the_run(runs: SmallRuns) -> None:
    counts = views.label_distribution(runs.fedac)
    assert counts.shape == (8, 10)
    sizes = table(runs.fedac, "clients").query("round == 1").set_index("client")["n_train"]
    assert counts.sum(axis=1).to_dict() == sizes.to_dict()


def test_labels_of_a_cluster_are_those_of_its_clients(runs: SmallRuns) -> None:
    counts, found = views.label_distribution(runs.fedac), views.cluster_label_distribution(runs.fedac)
    last = table(runs.fedac, "clients").query("round == 3")
    for cluster in found.index:
        members = last.loc[last["cluster"] == cluster, "client"]
        assert found.loc[cluster].tolist() == counts.loc[members].sum().tolist()


def test_labels_of_other_data_are_refused(runs: SmallRuns, tmp_path: Path) -> None:
    copy = small_run(tmp_path, "fedavg", "rounds=1", "partition.kind=dirichlet", "partition.alpha=0.5")
    text = Path(copy.path, "config.yaml").read_text()
    Path(copy.path, "config.yaml").write_text(text.replace("seed: 0", "seed: 5"))
    with pytest.raises(InputError, match="have changed"):
        views.label_distribution(rayfl.load(copy.path))


def test_code_that_a_run_names_is_imported_only_on_trust(runs: SmallRuns, tmp_path: Path) -> None:
    copy = small_run(tmp_path, "fedavg", "rounds=1")
    text = Path(copy.path, "config.yaml").read_text()
    Path(copy.path, "config.yaml").write_text(text.replace("source: digits", "source: evil.module:load"))
    with pytest.raises(InputError, match=r"data.source=evil.module:load: if you trust it, pass trust=True"):
        views.label_distribution(rayfl.load(copy.path))


def test_label_divergence_is_between_the_labels_of_clients_in_the_order_of_planted_clusters(runs: SmallRuns) -> None:
    found, counts = views.label_divergence(runs.fedac), views.label_distribution(runs.fedac).to_numpy() + 0.5
    one, two = (counts[member] / counts[member].sum() for member in found.members[:2])
    assert found.values[0, 1] == pytest.approx((one * np.log(one / two)).sum())
    assert (np.diag(found.values) == 0).all()
    assert (np.diff(found.truth) >= 0).all()


# -- what methods decide by ---------------------------------------------------------------------------------------


def test_granularity_is_that_of_the_clusters_table_with_the_thresholds_of_the_config(runs: SmallRuns) -> None:
    found = views.granularity(runs.granular)
    expected = table(runs.granular, "clusters").sort_values(["round", "cluster"])
    assert found["granularity"].tolist() == expected["granularity"].dropna().tolist()
    assert set(found["merge_below"]) == {0.25}
    assert set(found["split_above"]) == {0.8}


def test_a_run_that_does_not_tune_by_granularity_has_no_thresholds(runs: SmallRuns) -> None:
    assert views.granularity(runs.fedac)["merge_below"].isna().all()


def test_granularity_against_the_number_of_clusters_is_that_of_the_last_round(runs: SmallRuns) -> None:
    found = views.granularity_by_number([runs.fixed])
    last = table(runs.fixed, "clusters").query("round == 3")["granularity"]
    assert found["clusters"].tolist() == [3]
    assert found["n"].tolist() == [len(last)]
    assert found.loc[0, "mean"] == pytest.approx(last.mean())
    assert found.loc[0, "variance"] == pytest.approx(((last - last.mean()) ** 2).mean())


def test_a_single_cluster_has_no_granularity(runs: SmallRuns) -> None:
    assert table(runs.granular, "clusters").query("round == 3")["granularity"].isna().all()
    assert views.granularity_by_number([runs.granular]).empty


def test_tuning_shows_the_number_of_clusters_before_and_after(runs: SmallRuns) -> None:
    found = views.tuning(runs.granular)
    extras = [json.loads(text) for text in table(runs.granular, "rounds").sort_values("round").extras]
    assert found["before"].tolist() == [e["clusters_before_tuning"] for e in extras]
    assert found["after"].tolist() == [e["clusters_after_tuning"] for e in extras]


def test_hopkins_has_the_statistic_and_what_it_led_to(runs: SmallRuns) -> None:
    found = views.hopkins(runs.fedtsdp)
    extras = [json.loads(text) for text in table(runs.fedtsdp, "rounds").sort_values("round").extras]
    assert found["hopkins"].tolist() == [e["hopkins"] for e in extras]
    assert found["clustered"].tolist() == (found["hopkins"] > 0.3).tolist()
    assert set(found["threshold"]) == {0.3}
    shared = [e["shared_layers"] for e in extras]
    assert found["shrunk"].tolist() == [False, *(b < a for a, b in pairwise(shared))]
    assert found["shrunk"].any()
    assert found["value"].tolist() == table(runs.fedtsdp, "rounds").sort_values("round")["accuracy"].tolist()


# -- costs ------------------------------------------------------------------------------------------------------


def test_cost_counts_rounds_without_evaluation_too(runs: SmallRuns) -> None:
    found, rounds = views.cost([runs.sparse]), table(runs.sparse, "rounds").sort_values("round")
    assert found["round"].tolist() == [2, 4, 5]
    total = (rounds["bytes_up"] + rounds["bytes_down"]).cumsum().tolist()
    assert found["bytes"].tolist() == [total[1], total[3], total[4]]
    assert found["seconds"].iloc[-1] == pytest.approx(rounds["seconds_total"].sum())
    assert found["value"].tolist() == rounds["accuracy"].dropna().tolist()


def test_time_to_target_is_the_first_round_that_reaches_it(runs: SmallRuns) -> None:
    accuracy = table(runs.fedavg[0], "rounds").sort_values("round")["accuracy"].tolist()
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
    loss = table(runs.fedavg[0], "rounds").set_index("round")["loss"]
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
