"""FedAC: its steps against numbers computed from the clients' own models, and the clusters it must find."""

from collections.abc import Callable

import numpy as np
import pytest

from rayfl.clustering import NO_CLUSTER, cosine, granularity, project_all
from rayfl.federation import Own
from rayfl.methods.fedac import FedAC
from rayfl.results import Run
from rayfl.server import Server

Make = Callable[..., Server]


def fedac(server: Server) -> FedAC:
    assert isinstance(server.method, FedAC)
    return server.method


def test_the_embedding_is_the_mean_of_the_cohorts_backbones_not_their_sum(serial_server: Make) -> None:
    server = serial_server("participation.count=4", "local.steps=2")
    server.run_round(1)
    fed = server.fed
    backbones = fed.collect(server._cohort(1))[:, fed.layout.backbone]
    found = fedac(server).state.embedding[fed.layout.backbone]
    np.testing.assert_allclose(found, backbones.mean(axis=0), rtol=1e-5, atol=1e-7)


def test_centres_are_plain_means_of_their_clients_last_models(serial_server: Make) -> None:
    """Eq. 5: unweighted, over all who have taken part, also those not in this round's cohort."""
    server = serial_server("participation.count=5", "local.steps=2", "partition.samples=[40, 80]")
    for number in range(1, 6):
        server.run_round(number)
    state, fed = fedac(server).state, server.fed
    assert NO_CLUSTER in state.assignment or len(np.unique(state.assignment)) > 1
    for row, cluster in enumerate(state.clusters):
        members = np.flatnonzero(state.assignment == cluster)
        expected = fed.collect(members).mean(axis=0)
        np.testing.assert_allclose(state.centres[row, : fed.layout.parameters], expected, rtol=1e-4, atol=1e-6)


def test_the_sketch_of_a_centre_is_the_mean_of_its_clients_sketches(serial_server: Make) -> None:
    server = serial_server("local.steps=2")
    server.run_round(1)
    state, p = fedac(server).state, server.fed.layout.parameters
    assert state.low_rank is not None
    projected = project_all(state.low_rank, list(state.centres[:, :p]), server.fed.initial[:p])
    np.testing.assert_allclose(state.centre_sketches, projected, rtol=1e-3, atol=1e-5)


def test_a_client_goes_to_the_most_similar_centre(serial_server: Make) -> None:
    """Eq. 4 with arg max: the paper prints arg min, which would send everyone to the least similar."""
    server = serial_server("local.steps=3", "method.tuning=none")
    server.run_round(1)
    method = fedac(server)
    centres = method.state.centre_sketches.copy()
    server.run_round(2)
    similarity = cosine(method.state.sketches, centres)
    assert np.array_equal(method.state.assignment, similarity.argmax(axis=1))


def test_only_d_numbers_per_client_travel_for_clustering(serial_server: Make) -> None:
    """Round 2 sends a model and a sketch per client, and no map again."""
    server = serial_server("method.components=7", "local.steps=1", "method.tuning=none")
    server.run_round(1)
    summary = server.run_round(2).summary
    model = server.fed.layout.size * 4
    assert summary["bytes_up"] == 20 * (model + (7 + 1) * 8)
    backbone = model - (server.fed.layout.head.stop - server.fed.layout.head.start) * 4
    assert summary["bytes_down"] == 20 * (model + backbone)  # its centre, and the embedding


def test_components_are_bounded_by_the_cohort_and_topped_up_by_others_who_took_part(serial_server: Make) -> None:
    server = serial_server("participation.count=4", "local.steps=1", "method.pca_every=5", "rounds=9")
    server.run_round(1)
    state = fedac(server).state
    assert state.sketches.shape == (20, 3)
    for number in range(2, 7):
        server.run_round(number)
    seen = int((state.assignment != NO_CLUSTER).sum())
    assert state.sketches.shape == (20, seen - 1)


def test_a_newcomer_has_no_cluster_and_counts_nowhere_before_it_took_part(serial_server: Make) -> None:
    server = serial_server("participation.count=3", "local.steps=1")
    record = server.run_round(1)
    assignment = fedac(server).assignment()
    assert sorted(np.flatnonzero(assignment != NO_CLUSTER)) == server._cohort(1).tolist()
    assert record.clusters is not None
    assert record.clusters["size"].sum() == 3


def test_the_pull_to_a_centre_is_held_back_until_the_first_tuning_has_judged(serial_server: Make) -> None:
    weak = serial_server("method.mu=0.0", "method.tune_from=3", "local.steps=2", "local.lr=0.1")
    strong = serial_server("method.mu=5.0", "method.tune_from=3", "local.steps=2", "local.lr=0.1")
    everyone = np.arange(20)
    for number in (1, 2, 3):
        weak.run_round(number), strong.run_round(number)
        assert np.array_equal(weak.fed.collect(everyone), strong.fed.collect(everyone))
    weak.run_round(4), strong.run_round(4)
    assert not np.array_equal(weak.fed.collect(everyone), strong.fed.collect(everyone))


def test_spread_without_models_travelling_is_that_of_algorithm_3(serial_server: Make) -> None:
    server = serial_server("local.steps=3")
    for number in (1, 2):
        record = server.run_round(number)
    state, p = fedac(server).state, server.fed.layout.parameters
    models = server.fed.collect(np.arange(20)).astype(np.float64)
    centres = np.stack([models[state.assignment == k].mean(axis=0) for k in state.clusters])
    assert centres.shape == (len(state.clusters), p)
    rows = np.searchsorted(state.clusters, state.assignment)
    spread = np.square(models - centres[rows]).sum(axis=1)
    intra = np.array([spread[rows == row].mean() for row in range(len(centres))])
    between = np.square(centres[:, None] - centres[None]).sum(axis=2)
    assert record.clusters is not None
    np.testing.assert_allclose(record.clusters["intra"], intra, rtol=1e-3)
    np.testing.assert_allclose(record.clusters["granularity"], granularity(intra, between), rtol=1e-3)


def test_the_papers_rule_is_applied_every_round(serial_server: Make) -> None:
    """Well separated clusters have G_c below 0.2, so the rule merges them: faithful, if not wise."""
    server = serial_server("method.tuning=granularity", "method.clusters=8", "rounds=6", "local.steps=10")
    changed = [server.run_round(n).extras for n in range(1, 7)]
    assert any(e["clusters_after_tuning"] != e["clusters_before_tuning"] for e in changed)


def test_the_similarity_matrix_comes_on_request(serial_server: Make) -> None:
    server = serial_server("method.report_similarity=true", "local.steps=5")
    matrix = np.array(server.run_round(1).extras["similarity"])
    truth = server.truth
    assert truth is not None
    assert matrix.shape == (20, 20)
    same = truth[:, None] == truth[None]
    assert matrix[same].mean() > matrix[~same].mean() + 0.2
    assert "similarity" not in serial_server("local.steps=1").run_round(1).extras


def test_accuracy_is_the_personal_models_and_the_centres_stand_beside_it(serial_server: Make) -> None:
    server = serial_server("local.steps=5")
    record = server.run_round(1)
    personal = server.fed.evaluate(Own()).accuracy
    centres = server.fed.evaluate(fedac(server).also_tested()["centre"]).accuracy
    assert np.array_equal(record.clients["accuracy"], personal)
    assert record.extras["centre_accuracy"] == pytest.approx(np.average(centres, weights=server.fed.n_test))


PLANTED = ["rounds=20", "evaluate.every=20", "federation=serial"]


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [1, 2, 4, 8, 12])
def test_planted_clusters_are_found_from_any_number_to_start_from(
    simulate_quietly: Callable[..., Run], clusters: int
) -> None:
    run = simulate_quietly(*PLANTED, f"method.clusters={clusters}", f"seed={clusters}")
    assert (run.rounds["clusters"].iloc[-1], run.rounds["ari"].iloc[-1]) == (4, 1.0)


@pytest.mark.slow
def test_iid_clients_end_in_one_cluster(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*PLANTED, "partition.kind=iid", "method.clusters=12")
    assert run.rounds["clusters"].iloc[-1] == 1


@pytest.mark.slow
def test_planted_clusters_are_found_with_a_quarter_of_the_clients_per_round(
    simulate_quietly: Callable[..., Run],
) -> None:
    run = simulate_quietly(
        "rounds=60", "evaluate.every=60", "federation=serial", "participation.fraction=0.25", "method.clusters=8"
    )
    assert (run.rounds["clusters"].iloc[-1], run.rounds["ari"].iloc[-1]) == (4, 1.0)
