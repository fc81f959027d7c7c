"""Views of clusters, of matrices between clients, and of their samples, compared with the Parquet."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import SmallRuns, read, small_run

import rayfl
from rayfl.analysis import views
from rayfl.analysis.truth import adjusted_rand
from rayfl.errors import InputError
from rayfl.results import Run

# -- clusters -------------------------------------------------------------------------------------------------


def test_cluster_sizes_add_up_to_the_clients_that_have_a_cluster(runs: SmallRuns) -> None:
    sizes = views.cluster_sizes(runs.fedac).groupby("round")["size"].sum()
    assert sizes.to_dict() == {1: 8, 2: 8, 3: 8}


def test_the_summary_has_the_numbers_of_the_rounds_table(runs: SmallRuns) -> None:
    found, expected = views.cluster_summary(runs.fedac), read(runs.fedac, "rounds").sort_values("round")
    for name in ("clusters", "largest_share", "ari", "nmi", "misclustering"):
        assert found[name].tolist() == expected[name].tolist()


@pytest.mark.parametrize("view", [views.cluster_sizes, views.cluster_summary, views.moves, views.flows])
def test_a_method_without_clusters_gives_an_empty_table(runs: SmallRuns, view: Callable[[Run], pd.DataFrame]) -> None:
    without, having = view(runs.local), view(runs.fedac)
    assert len(without) == 0
    assert list(without.columns) == list(having.columns) or view is views.moves


def test_moves_are_the_clusters_of_the_clients_table(runs: SmallRuns) -> None:
    found = views.moves(runs.ifca[0])
    for row in read(runs.ifca[0], "clients").itertuples():
        assert found.loc[row.client, row.round] == row.cluster


def test_moves_do_not_guess_where_clients_are_that_did_not_train(runs: SmallRuns) -> None:
    found, clients = views.moves(runs.sparse), read(runs.sparse, "clients")
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
    reported = np.array(json.loads(read(runs.fedac, "rounds").set_index("round").loc[3, "extras"])["similarity"])
    np.testing.assert_array_equal(found.values, reported[np.ix_(found.members, found.members)])
    last = read(runs.fedac, "clients").query("round == 3").set_index("client")
    assert found.cluster.tolist() == last.loc[found.members, "cluster"].tolist()
    assert found.truth.tolist() == last.loc[found.members, "true_cluster"].tolist()
    assert (np.diff(found.cluster) >= 0).all()
    assert found.is_similarity


def test_a_matrix_can_be_put_in_order_of_clients_or_of_the_planted_clusters(runs: SmallRuns) -> None:
    assert views.similarity(runs.fedac, order="client").members.tolist() == list(range(8))
    assert (np.diff(views.similarity(runs.fedac, order="truth").truth) >= 0).all()


def test_divergences_are_between_the_clients_that_took_part(runs: SmallRuns) -> None:
    found = views.similarity(runs.fedtsdp, round=2, order="client")
    reported = json.loads(read(runs.fedtsdp, "rounds").set_index("round").loc[2, "extras"])["divergence"]
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
    sizes = read(runs.fedac, "clients").query("round == 1").set_index("client")["n_train"]
    assert counts.sum(axis=1).to_dict() == sizes.to_dict()


def test_labels_of_a_cluster_are_those_of_its_clients(runs: SmallRuns) -> None:
    counts, found = views.label_distribution(runs.fedac), views.cluster_label_distribution(runs.fedac)
    last = read(runs.fedac, "clients").query("round == 3")
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
