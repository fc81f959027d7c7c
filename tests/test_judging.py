"""When clients are judged, who is asked, what they answer, and when an answer counts."""

import doctest
from collections.abc import Callable

import numpy as np
import pytest

from rayfl.client.client import Known
from rayfl.client.handed import MODEL
from rayfl.clustering import (
    average_linkage,
    cosine_distances,
    fit_low_rank,
    groups_of_tree,
    project_all,
    useful_clusters,
)
from rayfl.clustering.useful import UsefulClusters
from rayfl.methods import judging
from rayfl.methods.judging import MOST_JUDGED, Judging, held_out_losses, rounds_until, stratified
from rayfl.simulation.server import Server

Make = Callable[..., Server]


#: Losses before and after training, of which half is gone.
LEARNT = np.array([[2.0, 1.0]])


def verdict(*clusters: int) -> UsefulClusters:
    return UsefulClusters(np.array(clusters), (), 2.3, (len(set(clusters)),), len(clusters))


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(judging).failed == 0


def test_half_of_the_clients_must_have_trained_often_enough_or_as_many_as_are_judged() -> None:
    few = Judging.of(4, first=5)
    few.trained[:] = [9, 6, 3, 2]
    assert few.trainings(np.arange(4)) == 6 and few.eligible(np.arange(4)).tolist() == [0, 1, 2]
    many = Judging.of(10_000, first=5)
    many.trained[:MOST_JUDGED] = 5
    assert many.trainings(np.arange(10_000)) == 5
    many.trained[0] = 4
    assert many.trainings(np.arange(10_000)) == 4
    assert Judging.of(3, first=5).trainings(np.array([], np.int64)) == 0


def test_the_estimate_of_rounds_is_that_of_drawn_cohorts() -> None:
    rng, state = np.random.default_rng(0), Judging.of(2000, first=5)
    number = 0
    while state.trainings(np.arange(2000)) < 5:
        state.trained[rng.choice(2000, 100, replace=False)] += 1
        number += 1
    assert number == pytest.approx(rounds_until(5, 2000, 100), rel=0.1)


def test_a_verdict_counts_when_the_next_one_repeats_it() -> None:
    state, everyone, current = Judging.of(6, first=5), np.arange(6), np.array([0, 1, 2, 0, 1, 2])
    pairs, halves, one = verdict(0, 0, 1, 1, 2, 2), verdict(0, 0, 0, 1, 1, 1), verdict(0, 0, 0, 0, 0, 0)

    def decide(found: UsefulClusters, trainings: int) -> tuple[bool, str, int]:
        used = state.decide(everyone, found, LEARNT, current, every=40, trainings=trainings)
        return used, state.verdict["verdict"], state.next_at

    assert decide(pairs, 5) == (False, "not yet", 10)
    assert decide(halves, 10) == (False, "not yet", 20)
    assert decide(halves, 20) == (True, "found", 40)
    current = halves.assignment
    assert decide(halves, 40) == (False, "confirmed", 80)
    assert decide(one, 80) == (False, "change waits for the next judgement", 120)
    assert decide(halves, 120) == (False, "confirmed", 160)
    assert decide(one, 160) == (False, "change waits for the next judgement", 200)
    assert decide(one, 200) == (True, "changed", 240)


def test_one_cluster_is_a_verdict_that_must_be_repeated_too() -> None:
    state, everyone = Judging.of(4, first=5), np.arange(4)
    one, current = verdict(0, 0, 0, 0), np.zeros(4, int)
    assert not state.decide(everyone, one, LEARNT, current, 40, 5)
    assert not state.decided
    assert state.decide(everyone, one, LEARNT, current, 40, 10)
    assert state.decided


def test_one_cluster_is_no_answer_before_clients_have_learnt_something() -> None:
    state, everyone, current = Judging.of(4, first=5), np.arange(4), np.zeros(4, int)
    one, little = verdict(0, 0, 0, 0), np.array([[2.0, 1.9]])
    assert not state.decide(everyone, one, little, current, 40, 5)
    assert not state.decide(everyone, one, little, current, 40, 10)
    assert state.verdict["verdict"] == "not yet" and state.verdict["learnt"] == 0.05
    assert not state.decide(everyone, one, LEARNT, current, 40, 20)
    assert state.decide(everyone, one, little, current, 40, 40)  # the last word, whatever they have learnt


def test_verdicts_that_never_agree_do_not_hold_the_clusters_back_for_ever() -> None:
    state, current = Judging.of(4, first=5), np.zeros(4, int)
    found = [verdict(0, 0, 1, 1), verdict(0, 1, 0, 1), verdict(0, 0, 1, 1), verdict(0, 1, 0, 1)]
    assert [state.decide(np.arange(4), v, LEARNT, current, 40, 5 * 2**i) for i, v in enumerate(found)] == [0, 0, 0, 1]


def test_a_group_of_few_clients_among_many_is_in_the_sample() -> None:
    rng = np.random.default_rng(0)
    directions = np.eye(50)[np.repeat(np.arange(4), [6000, 3000, 960, 40])]
    points = directions + 0.05 * rng.normal(size=(10_000, 50))
    for seed in range(5):
        sample = stratified(points, 256, np.random.default_rng(seed))
        assert len(sample) == len(np.unique(sample)) == 256
        assert (sample >= 9960).sum() >= 4
    assert stratified(points[:200], 256, rng).tolist() == list(range(200))


@pytest.mark.parametrize("addons", ["[]", "[cam]"])
@pytest.mark.parametrize(
    ("samples", "validation", "asked"), [(18, 0.0, "train"), (18, 0.2, "validation"), (80, 0.2, "train")]
)
def test_clients_answer_with_the_loss_of_the_others_mean_if_they_have_few_samples_on_some_for_validation(
    serial_server: Make, samples: int, validation: float, asked: str, addons: str
) -> None:
    words = ["local.steps=3", "partition.clients=12", f"partition.validation={validation}"]
    words += [f"partition.samples=[{samples}, {samples}]"]
    server = serial_server(*words, f"method.addons={addons}")
    server.run_round(1)
    fed, who = server.fed, np.array([1, 4, 5, 7, 8, 10])
    models = fed.collect(who, buffers=True)
    tree = average_linkage(cosine_distances(models - fed.initial))
    beside = server.method.state.shared if addons != "[]" else None
    losses, progress = held_out_losses(fed, who, tree, beside)
    partner = () if beside is None else (beside,)
    for t, group in enumerate(groups_of_tree(tree)):
        assert np.isnan(np.delete(losses[:, t], group)).all()
        for i in group:
            others = models[np.setdiff1d(group, [i])].astype(np.float64).mean(axis=0).astype(np.float32)
            expected = fed.map(who[i : i + 1], judged_loss[asked], others[None], *partner, slot=MODEL)
            np.testing.assert_allclose(losses[i, t], expected[0], rtol=1e-4)
    columns = [(fed.initial, asked), (fed.initial, "train"), (models[2], "train")]
    for column, (model, split) in enumerate(columns):
        expected = fed.map(who[2:3], judged_loss[split], model[None], *partner)[0]
        np.testing.assert_allclose(progress[2, column], expected, rtol=1e-5)


def loss_in_training(client, models, beside=None):
    return client.losses(models, beside, most=judging.MOST_SAMPLES).mean()


def loss_in_validation(client, models, beside=None):
    return client.losses(models, beside, most=judging.MOST_SAMPLES, split="validation").mean()


judged_loss = {"train": loss_in_training, "validation": loss_in_validation}


def test_labels_that_few_samples_have_by_chance_are_no_clusters_where_nobody_trained_on_what_is_asked(
    serial_server: Make,
) -> None:
    """Clients of one kind with six training samples each: those with the same labels have similar models."""
    words = ["partition.kind=iid", "partition.clients=200", "partition.validation=0.2", "model.name=mlp"]
    server = serial_server(*words, "method.name=local", "local.steps=10", "rounds=5")
    fed, everyone = server.fed, np.arange(200)
    assert fed.n_train.max() <= 7 and fed.n_validation.min() >= 1
    for number in range(1, 6):
        server.run_round(number)
    models = fed.collect(everyone)
    points = project_all(fit_low_rank(models, 50), list(models), fed.initial[: models.shape[1]])
    tree = average_linkage(cosine_distances(points))
    splits: list[Known | None] = [None, "train"]
    judgements = [held_out_losses(fed, everyone, tree, split=split) for split in splits]
    found, by_training = (useful_clusters(tree, losses, points, p[:, 0]).clusters for losses, p in judgements)
    assert found == 1
    assert by_training > 1, "the chance is there, and asking about training samples does not see through it"


def test_a_judgement_is_counted_as_traffic(serial_server: Make) -> None:
    server = serial_server("local.steps=1", "partition.clients=8")
    server.run_round(1)
    fed, everyone = server.fed, np.arange(8)
    tree = average_linkage(cosine_distances(fed.collect(everyone)))
    before = fed.ledger.bytes_down
    held_out_losses(fed, everyone, tree)
    received = sum(len(group) for group in groups_of_tree(tree))  # one mean for each group that a client is in
    assert fed.ledger.bytes_down - before == received * fed.layout.size * 4 + 8 * 7  # and which groups it is in


def test_at_most_so_many_samples_count_and_always_the_same(serial_server: Make) -> None:
    server = serial_server("partition.clients=4")
    server.fed.begin_round(1)
    few = server.fed.map(np.array([2]), sampled_losses, server.fed.initial[None])
    assert few.shape == (1, 2, 5) and np.array_equal(few[0, 0], few[0, 1])


def sampled_losses(client, model):
    again = type(client)(client._worker, client.number, client.round, client._stream)
    return np.stack([client.losses(model, most=5)[0], again.losses(model, most=5)[0]])
