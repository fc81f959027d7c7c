"""FedAC: its steps against numbers computed from the clients' own models, and the clusters it must find."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rayfl.clustering import NO_CLUSTER, GranularityNorm, cosine, granularity, project_all, tune_by_granularity
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.federation import Personal
from rayfl.methods.fedac import FedAC
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

Make = Callable[..., Server]
QUICK = ["model.name=mlp", "model.options.hidden=16", "evaluate.every=60"]


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
    """Eq. 5: unweighted, over all clients that have taken part, also those not in this round's cohort."""
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


def test_the_pull_to_a_centre_is_held_back_until_two_judgements_agree(serial_server: Make) -> None:
    words = ["method.tune_from=4", "local.lr=0.2"]
    weak, strong = serial_server("method.mu=0.0", *words), serial_server("method.mu=5.0", *words)
    everyone = np.arange(20)
    for number in range(1, 9):
        weak.run_round(number), strong.run_round(number)
        assert np.array_equal(weak.fed.collect(everyone), strong.fed.collect(everyone))
        assert fedac(strong).state.judging.decided == (number == 8)
    weak.run_round(9), strong.run_round(9)
    assert not np.array_equal(weak.fed.collect(everyone), strong.fed.collect(everyone))


def test_the_verdict_is_in_the_extras_of_the_round_in_which_clients_were_asked(serial_server: Make) -> None:
    server = serial_server("method.tune_from=4", "local.lr=0.2")
    verdicts = {number: server.run_round(number).extras.get("judgement") for number in range(1, 10)}
    assert [number for number, verdict in verdicts.items() if verdict] == [4, 8]
    first, second = verdicts[4], verdicts[8]
    assert first is not None and second is not None
    assert (first["verdict"], second["verdict"]) == ("not yet", "found")
    assert (second["clusters"], second["asked"], second["trainings"]) == (4, 20, 8)
    assert 4 in second["supported"] and second["score"] > second["limit"] and second["gain"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [np.zeros(20, np.int64), np.arange(20) % 10], ids=["one", "ten"])
def test_a_wrong_clustering_under_the_pull_is_corrected(serial_server: Make, wrong: np.ndarray) -> None:
    """Not only from the start: here the pull has kept wrong clusters together for ten rounds."""
    server = serial_server("method.tune_from=5", "method.tune_every=5", "method.similarity=lrcos")
    for number in range(1, 11):
        server.run_round(number)
    method = fedac(server)
    method.state.assignment = wrong + method.state.next_number
    method._recentre()
    method.state.judging.next_at = 20
    for number in range(11, 36):
        record = server.run_round(number)
    assert (record.summary["clusters"], record.summary["ari"]) == (4, 1.0)


def test_a_run_that_is_too_short_to_judge_is_told_so_before_it_starts() -> None:
    def notes(*words: str) -> list[str]:
        return prepare(load_config(None, ["federation=serial", *words])).notes

    assert notes("rounds=10") == []
    (note,) = notes("rounds=9")
    assert "rounds=9 is too short to find the number of clusters" in note and "about 10 rounds" in note
    assert notes("rounds=9", "method.tuning=granularity") == [] == notes("rounds=9", "method.name=fedavg")
    (note,) = notes("rounds=30", "participation.fraction=0.25")
    assert "5 of 20 clients per round" in note


def test_clients_with_few_samples_are_told_to_keep_some_for_validation() -> None:
    def notes(*words: str) -> list[str]:
        return prepare(load_config(None, ["federation=serial", "partition.clients=100", *words])).notes

    (note,) = notes()
    assert "100 of 100 clients have fewer than 20 training samples" in note and "partition.validation=0.2" in note
    assert notes("partition.validation=0.2") == [] == notes("method.tuning=granularity")


@pytest.mark.parametrize("norm", ["l2", "squared"])
def test_spread_without_models_travelling_is_that_of_algorithm_3(serial_server: Make, norm: GranularityNorm) -> None:
    server = serial_server("local.steps=3", f"method.granularity_norm={norm}")
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
    if norm == "l2":
        intra, between = np.sqrt(intra), np.sqrt(between)
    assert record.clusters is not None
    np.testing.assert_allclose(record.clusters["intra"], intra, rtol=1e-3)
    np.testing.assert_allclose(record.clusters["granularity"], granularity(intra, between), rtol=1e-3)


def test_the_papers_rule_is_applied_every_round(serial_server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Well separated clusters have squared G_c below 0.2, so the printed rule merges them: faithful, if not wise."""
    words = ["method.tuning=granularity", "method.granularity_norm=squared"]
    server = serial_server(*words, "method.clusters=8", "rounds=6", "local.steps=10")
    tuned: list[np.ndarray] = []

    def noted(*arguments: Any) -> np.ndarray:
        tuned.append(tune_by_granularity(*arguments))
        return tuned[-1]

    monkeypatch.setattr("rayfl.methods.fedac.tune_by_granularity", noted)
    counts = []
    for number in range(1, 7):
        extras = server.run_round(number).extras
        assert len(tuned) == number
        assert np.array_equal(fedac(server).state.assignment, tuned[-1])
        assert extras["clusters_after_tuning"] == len(np.unique(tuned[-1]))
        counts.append((extras["clusters_before_tuning"], extras["clusters_after_tuning"]))
    assert any(before != after for before, after in counts)


def test_by_default_granularity_takes_plain_distances(serial_server: Make) -> None:
    """As Figures 4(c) and 4(d) ask for; see the module. A round of either rule differs only in the norm."""
    counts = {}
    for norm in ("l2", "squared", None):
        words = [] if norm is None else [f"method.granularity_norm={norm}"]
        server = serial_server("method.tuning=granularity", "method.clusters=6", "local.steps=10", *QUICK, *words)
        counts[norm] = [server.run_round(n).extras["clusters_after_tuning"] for n in (1, 2, 3, 4)]
    assert counts[None] == counts["l2"] != counts["squared"]
    assert counts["l2"][-1] > counts["squared"][-1]


# -- similarities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["initial", "mean", "none"])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_whole_weights_decide_where_they_are_asked_for(serial_server: Make, similarity: str, origin: str) -> None:
    """The E-step against the centres of the round before, from collected models; absent clients keep their cluster."""
    words = [f"method.similarity={similarity}", f"method.origin={origin}", "method.tuning=none"]
    server = serial_server(*words, "local.steps=3", "participation.count=8", "method.clusters=3")
    method, fed = fedac(server), server.fed
    for number in (1, 2):
        server.run_round(number)
    state, cohort = method.state, server._cohort(3)
    centres, clusters, before = state.centres[:, : fed.layout.parameters], state.clusters, state.assignment.copy()
    server.run_round(3)
    assert state.low_rank is not None
    models = fed.collect(cohort).astype(np.float64)
    seen_from = {"initial": fed.initial[: fed.layout.parameters], "mean": state.low_rank.mean, "none": 0.0}[origin]
    if similarity == "l2":
        expected = np.linalg.norm(models[:, None] - centres[None], axis=2).argmin(axis=1)
    else:
        expected = cosine(models - seen_from, centres.astype(np.float64) - seen_from).argmax(axis=1)
    assert len(set(expected)) > 1
    assert np.array_equal(state.assignment[cohort], clusters[expected])
    absent = np.setdiff1d(np.arange(20), cohort)
    assert np.array_equal(state.assignment[absent], before[absent])


def test_the_similarities_do_not_always_agree(serial_server: Make) -> None:
    found = {}
    for similarity in ("lrcos", "cosine", "l2"):
        words = [f"method.similarity={similarity}", "method.tuning=none", "partition.samples=[20, 80]"]
        server = serial_server(*words, *QUICK)
        for number in (1, 2, 3):
            server.run_round(number)
        found[similarity] = fedac(server).state.assignment.tolist()
    assert found["l2"] != found["lrcos"]


def test_whole_weights_that_are_compared_are_those_that_travel_for_the_means(serial_server: Make) -> None:
    traffic = {}
    for similarity in ("lrcos", "cosine", "l2"):
        server = serial_server(f"method.similarity={similarity}", "local.steps=1", "method.tuning=none")
        summaries = [server.run_round(number).summary for number in (1, 2)]
        traffic[similarity] = [(s["bytes_up"], s["bytes_down"]) for s in summaries]
    assert traffic["cosine"] == traffic["l2"] == traffic["lrcos"]


def test_absent_clients_are_asked_for_nothing_when_the_map_is_new(serial_server: Make) -> None:
    """The server projects the models it has; a client gets the map when it takes part again."""
    words = ["method.components=3", "method.pca_every=2", "method.tuning=none", "local.steps=1"]
    server = serial_server(*words, "participation.count=5")
    fed, model = server.fed, server.fed.layout.size * 4
    map_bytes, sketch = 3 * fed.layout.parameters * 4, (3 + 1) * 8
    for number in range(1, 6):
        new_map = (number - 1) % 2 == 0
        cohort, state = server._cohort(number), fedac(server).state
        before = state.has_map.copy()
        in_a_cluster = int((state.assignment[cohort] != NO_CLUSTER).sum())
        summary = server.run_round(number).summary
        assert summary["bytes_up"] == 5 * (model + sketch)
        get_it = 5 if new_map else int((~before[cohort]).sum())
        head = (fed.layout.head.stop - fed.layout.head.start) * 4
        assert summary["bytes_down"] == get_it * map_bytes + 5 * (model - head) + in_a_cluster * model
        # And still everyone's sketch is that of the model it sent last, under the map of today.
        seen = np.flatnonzero(state.assignment != NO_CLUSTER)
        assert state.low_rank is not None
        expected = project_all(state.low_rank, list(fed.collect(seen)), fed.initial[: fed.layout.parameters])
        if new_map:
            assert len(seen) > 5 or number == 1
            np.testing.assert_array_equal(state.sketches[seen], expected)


def test_the_server_cannot_project_models_that_it_has_not_got(serial_server: Make) -> None:
    server = serial_server("local.steps=1", "method.components=3")
    server.run_round(1)
    method = fedac(server)
    method.state.low_rank = None  # so that a map is fitted
    server.fed.begin_round(2)
    server.fed.train(np.array([3, 5, 6, 7, 8]), keep=True)
    with pytest.raises(ValueError, match=r"has not got the latest models of the clients \[3\]"):
        method._sketch(np.array([5, 6, 7, 8]), np.arange(3, 9), None)


def test_the_similarity_matrix_comes_on_request(serial_server: Make) -> None:
    server = serial_server("method.report_similarity=true", "local.steps=5")
    matrix = np.array(server.run_round(1).extras["similarity"])
    truth = server.truth
    assert truth is not None
    assert matrix.shape == (20, 20)
    same = truth[:, None] == truth[None]
    assert matrix[same].mean() > matrix[~same].mean() + 0.2
    assert "similarity" not in serial_server("local.steps=1").run_round(1).extras


@pytest.mark.parametrize("origin", ["initial", "none"])
def test_the_matrix_is_of_the_similarity_asked_for(
    serial_server: Make, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the models before the last round's fine-tuning, whatever number of them is compared at once."""
    monkeypatch.setattr("rayfl.methods.fedac.COMPARED", 3)
    words = ["method.report_similarity=true", f"method.origin={origin}", "local.steps=2", "participation.count=7"]
    for similarity, name in (("cosine", "similarity"), ("l2", "distance")):
        tuned = serial_server(*words, f"method.similarity={similarity}", "rounds=1", "method.finetune=true")
        server = serial_server(*words, f"method.similarity={similarity}")
        record, fed = server.run_round(1), server.fed
        matrix = np.array(record.extras[name])
        models = np.repeat(fed.initial[None, : fed.layout.parameters], 20, axis=0).astype(np.float64)
        cohort = server._cohort(1)
        models[cohort] = fed.collect(cohort)
        if similarity == "l2":
            expected = np.linalg.norm(models[:, None] - models[None], axis=2)
        else:
            seen_from = models[np.setdiff1d(np.arange(20), cohort)[0]] if origin == "initial" else 0.0
            expected = cosine(models - seen_from, models - seen_from)
        np.testing.assert_allclose(matrix, expected, atol=1e-4)
        other = tuned.run_round(1)
        assert np.array_equal(other.extras[name], matrix)
        assert other.summary["bytes_up"] == record.summary["bytes_up"]


def test_a_matrix_of_too_many_clients_is_refused() -> None:
    words = ["method.report_similarity=true", "partition.clients=501", "federation=serial"]
    with pytest.raises(InputError, match=r"method\.report_similarity=True: a matrix of 501 clients .* at most 500"):
        prepare(load_config(None, words))


def test_accuracy_is_the_personal_models_and_the_centres_stand_beside_it(serial_server: Make) -> None:
    server = serial_server("local.steps=5")
    record = server.run_round(1)
    personal = server.fed.evaluate(Personal())["accuracy"]
    centres = server.fed.evaluate(fedac(server).also_tested()["centre"])["accuracy"]
    assert np.array_equal(record.clients["accuracy"], personal)
    assert record.extras["centre_accuracy"] == pytest.approx(np.average(centres, weights=server.fed.n_test))


PLANTED = ["rounds=20", "evaluate.every=20", "federation=serial"]


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [1, 2, 4, 8, 12])
def test_planted_clusters_are_found_from_few_and_from_many_clusters_to_start_with(
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
