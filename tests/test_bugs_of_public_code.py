"""Bugs found in public code of these methods, which comparisons in the literature inherited: rayfl does not have them.

Each test is named after a bug and fails if rayfl had it. docs/methods.md says whose code it is, and in which file.
Bugs that are tested elsewhere (test_traps.py, test_hand_worked.py and others) are listed there too, not here.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from rayfl.client.worker import Worker
from rayfl.clustering import bipartition, cosine
from rayfl.federation import Models, Personal, everyone
from rayfl.federation.serial import SerialFederation
from rayfl.methods import METHODS
from rayfl.simulation.server import Server

Make = Callable[..., Server]

EVERYONE = np.arange(12)
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=3", "local.lr=0.1", "rounds=8"]
SMALL += ["evaluate.every=1", "model.name=mlp", "model.options.hidden=16"]
UNEQUAL = "partition.samples=[20, 40]"  # else all ways to weigh clients would agree
SPLIT_ALWAYS = ["method.warmup=0", "method.eps1=100", "method.eps2=1e-6"]  # of CFL


@pytest.fixture
def small(serial_server: Make) -> Make:
    return lambda method, *overrides: serial_server(*SMALL, f"method.name={method}", *overrides)


def assigned(server: Server) -> np.ndarray:
    """Everyone's cluster as it is now."""
    rows = server.method.assignment()
    assert rows is not None
    return rows.copy()


def centres_of(server: Server) -> np.ndarray:
    return server.method.state.centres[:, : server.fed.layout.parameters].astype(np.float64)


def means(server: Server, models: np.ndarray, weighted: bool = True) -> dict[int, np.ndarray]:
    """The mean of everyone's models in each cluster that has clients."""
    rows = assigned(server)
    weights = server.fed.n_train if weighted else np.ones(len(rows))
    return {
        int(k): np.average(models[rows == k].astype(np.float64), axis=0, weights=weights[rows == k])
        for k in np.unique(rows)
    }


def worker_of(server: Server) -> Worker:
    assert isinstance(server.fed, SerialFederation)
    return server.fed._worker


def loss_on(server: Server, client: int, vector: np.ndarray, indices: np.ndarray) -> float:
    """The loss of one model on some samples of a client, without any of the evaluation under test."""
    worker = worker_of(server)
    inputs, labels = worker.samples(client, indices)
    worker.model.load(vector)
    with torch.no_grad():
        return float(cross_entropy(worker.model.module.eval()(inputs), labels))


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# -- cluster models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ifca", "wecfl", "fesem"])
def test_cluster_models_are_not_bound_to_one_object(small: Make, method: str) -> None:
    """The mean of the cluster that is averaged last would be the model of all."""
    server = small(method, "method.clusters=3")
    server.run_round(1)
    server.run_round(2)
    centres, expected = centres_of(server), means(server, server.fed.collect(EVERYONE))
    assert len(expected) > 1
    for k, mean in expected.items():
        close(centres[k], mean)
        assert all(np.abs(centres[k] - centres[j]).max() > 1e-3 for j in expected if j != k)


def test_a_client_that_changes_its_cluster_does_not_overwrite_the_model_of_the_one_it_leaves(small: Make) -> None:
    server = small("ifca", "method.clusters=2")
    server.run_round(1)
    state, fed = server.method.state, server.fed
    old = int(state.assignment[5])
    state.centres = state.centres[::-1].copy()  # now the model it likes has the other number
    before = state.centres.copy()
    fed.begin_round(2)
    server.method.round(np.array([5]))
    assert state.assignment[5] == 1 - old
    assert np.array_equal(state.centres[old], before[old])
    close(centres_of(server)[1 - old], fed.collect(np.array([5]))[0])
    fed.begin_round(2)  # and it began from the model of its new cluster
    fed.train(np.array([5]), start=Models(before, np.full(12, 1 - old)))
    close(centres_of(server)[1 - old], fed.collect(np.array([5]))[0])


@pytest.mark.parametrize("method", ["ifca", "fesem"])
def test_a_cluster_model_is_the_mean_of_all_its_clients_not_the_model_of_the_first(small: Make, method: str) -> None:
    """Weights in a list that is too short: zip then stops after the first client."""
    server = small(method, "method.clusters=2")
    server.run_round(1)
    models, rows = server.fed.collect(EVERYONE), assigned(server)
    for k, mean in means(server, models).items():
        members = np.flatnonzero(rows == k)
        close(centres_of(server)[k], mean)
        if len(members) > 1:
            assert np.abs(centres_of(server)[k] - models[members[0]]).max() > 1e-3
    assert np.bincount(rows).max() > 1


def test_clients_weigh_by_their_samples_not_by_their_batches(small: Make) -> None:
    """The length of a data loader is its number of batches, that of a dict its number of keys; both are equal here."""
    server = small("ifca", "method.clusters=1", UNEQUAL, "local.batch_size=500")
    server.run_round(1)
    models, centre = server.fed.collect(EVERYONE), centres_of(server)[0]
    close(centre, means(server, models)[0])
    assert np.abs(centre - means(server, models, weighted=False)[0]).max() > 1e-3


def test_the_first_clusters_of_fesem_come_from_trained_models_not_from_random_points(small: Make) -> None:
    """Of K-means over what clients learnt, everyone is in the cluster whose mean is nearest."""
    server = small("fesem", "method.clusters=3", "local.steps=10")
    server.run_round(1)
    models, rows = server.fed.collect(EVERYONE).astype(np.float64), assigned(server)
    found = means(server, models, weighted=False)
    assert sorted(found) == [0, 1, 2]  # nor are all clients in one cluster, nearest to an untrained model
    distances = np.square(models[:, None] - np.stack([found[k] for k in range(3)])).sum(axis=2)
    assert rows.tolist() == distances.argmin(axis=1).tolist()


def test_first_models_are_not_drawn_again_until_every_cluster_has_clients(small: Make) -> None:
    server = small("ifca", "method.clusters=6")
    drawn = server.fed.initial_models(6)
    server.run_round(1)
    empty = np.setdiff1d(np.arange(6), assigned(server))
    assert len(empty)
    assert np.array_equal(server.method.state.centres[empty], drawn[empty])


# -- batch norm ------------------------------------------------------------------------------------------------------

NORM = ["data.limit=480", "partition.clients=12", "local.steps=3", "local.lr=0.1", "rounds=2", UNEQUAL]
NORM += ["partition.kind=classes", "partition.classes=1"]  # each has statistics of its own


def test_running_statistics_of_batch_norm_are_averaged_and_tested_not_left_on_the_clients(
    serial_server: Make, bn_module: str
) -> None:
    """Averaging `parameters()` leaves them out: "FedAvg" then tests each client with its own statistics."""
    server = serial_server(*NORM, f"model.name={bn_module}", "method.name=fedavg")
    fed = server.fed
    record = server.run_round(1)
    model, vectors = server.method.state.model, fed.collect(EVERYONE, buffers=True).astype(np.float64)
    assert fed.layout.size > fed.layout.parameters
    close(model, np.average(vectors, axis=0, weights=fed.n_train))
    shows = 0
    for client in EVERYONE.tolist():
        test = worker_of(server).partition.test_of(client)
        own = model.copy()
        own[fed.layout.parameters :] = vectors[client, fed.layout.parameters :]
        assert record.clients["loss"][client] == pytest.approx(loss_on(server, client, model, test), rel=1e-4)
        shows += record.clients["loss"][client] != pytest.approx(loss_on(server, client, own, test), rel=1e-3)
    assert shows > 3


def test_a_client_does_not_begin_with_the_running_statistics_of_the_client_before_it(
    serial_server: Make, bn_module: str
) -> None:
    """One network object serves many clients; what is not sent with a model stays in it from the last one."""
    fed = serial_server(*NORM, f"model.name={bn_module}", "method.name=fedavg").fed
    fed.begin_round(1)
    start = everyone(fed.initial, 12)
    fed.train(np.array([3]), start=start)
    alone = fed.collect(np.array([3]), buffers=True)[0]
    fed.train(np.array([7, 8, 3]), start=start)
    close(fed.collect(np.array([3]), buffers=True)[0], alone)


# -- what is tested, on which samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), [("ifca", ["method.clusters=4"]), ("cfl", SPLIT_ALWAYS)])
def test_the_model_that_a_client_is_tested_with_is_not_chosen_on_its_test_samples(
    small: Make, method: str, options: list[str]
) -> None:
    """Neither the model of least loss on the labelled test samples, nor the one that did best on them."""
    server = small(method, *options)
    server.run_round(1)
    record = server.run_round(2)
    rows, stack = assigned(server), server.method.state.centres
    better = 0
    for client in EVERYONE.tolist():
        test = worker_of(server).partition.test_of(client)
        losses = [loss_on(server, client, centre, test) for centre in stack]
        assert record.clients["loss"][client] == pytest.approx(losses[rows[client]], rel=1e-4)
        better += int(np.argmin(losses) != rows[client])
    assert better > 0  # for these the choice would show


@pytest.mark.parametrize("method", ["fedgroup", "ifca"])
def test_absent_clients_are_not_tested_with_the_model_that_they_received_last(small: Make, method: str) -> None:
    """But with the one that their cluster has now."""
    server = small(method, "method.clusters=2", "participation.count=5")
    for number in (1, 2, 3, 4):
        before, stack = assigned(server), server.method.state.centres.copy()
        record = server.run_round(number)
    rows, now = assigned(server), server.method.state.centres
    absent = [i for i in np.setdiff1d(EVERYONE, server._cohort(4)).tolist() if before[i] >= 0]
    assert absent
    for client in absent:
        assert rows[client] == before[client]
        test = worker_of(server).partition.test_of(client)
        assert record.clients["loss"][client] == pytest.approx(
            loss_on(server, client, now[rows[client]], test), rel=1e-4
        )
    assert any(np.abs(now[rows[i]] - stack[rows[i]]).max() > 1e-3 for i in absent)  # their clusters went on


def test_fesems_figure_is_not_that_of_the_best_centre_for_everybody(small: Make) -> None:
    server = small("fesem", "method.clusters=3", "local.steps=10", UNEQUAL)
    server.run_round(1)
    record = server.run_round(2)
    fed, stack, sizes = server.fed, server.method.state.centres, server.fed.n_test
    each = np.stack([fed.evaluate(everyone(centre, 12))["accuracy"] for centre in stack])  # (K, m)
    own = each[assigned(server), EVERYONE]
    assert record.summary["accuracy"] == pytest.approx(float((own * sizes).sum() / sizes.sum()))
    assert record.summary["accuracy"] != pytest.approx(float((each @ sizes).max() / sizes.sum()))


@pytest.mark.parametrize("method", ["fedsoft", "local", "ditto"])
def test_personal_models_are_not_tested_on_the_samples_that_they_were_trained_on(small: Make, method: str) -> None:
    server = small(method, "local.steps=20")
    record = server.run_round(1)
    tested, partition = server.method.eval_models(), worker_of(server).partition
    assert isinstance(tested, Personal)
    vectors = server.fed.collect(EVERYONE, slot=tested.slot, buffers=True)
    for client in (0, 5, 11):
        train, test = partition.train_of(client), partition.test_of(client)
        assert not set(train) & set(test)
        assert record.clients["loss"][client] == pytest.approx(loss_on(server, client, vectors[client], test), rel=1e-4)
        assert record.clients["loss"][client] != pytest.approx(
            loss_on(server, client, vectors[client], train), rel=0.01
        )


def test_a_rounds_figures_are_not_those_of_the_best_round_so_far(small: Make) -> None:
    server = small("fedavg", "local.steps=20", "local.lr=0.3")
    server.run_round(1)
    best = server.run_round(2).summary["accuracy"]
    server.method.state.model = -server.method.state.model  # as bad as it gets
    worse = server.run_round(3).summary["accuracy"]
    assert worse < best
    now = server.fed.evaluate(everyone(server.method.state.model, 12))["accuracy"]
    assert worse == pytest.approx(float((now * server.fed.n_test).sum() / server.fed.n_test.sum()))


# -- how figures are averaged ----------------------------------------------------------------------------------------


def test_an_ensembles_figures_are_not_weighted_by_the_clients_positions(small: Make) -> None:
    record = small("fedavg_ensemble", "method.clusters=2", UNEQUAL).run_round(1)
    sizes, each = record.clients["n_test"], record.clients["accuracy"]
    assert record.summary["accuracy"] == pytest.approx((each * sizes).sum() / sizes.sum())
    assert record.summary["accuracy"] <= 1
    assert record.summary["accuracy"] != pytest.approx((each * EVERYONE).sum() / EVERYONE.sum())


def test_figures_of_one_shot_clusters_are_means_over_clients_not_over_clusters(small: Make) -> None:
    server = small("local_kmeans", "method.clusters=3", "method.warmup=1", UNEQUAL)
    server.run_round(1)
    record = server.run_round(2)
    rows, each, sizes = assigned(server), record.clients["accuracy"], record.clients["n_test"]
    assert len(set(np.bincount(rows))) > 1  # clusters of several sizes
    of_clusters = np.mean([each[rows == k].mean() for k in np.unique(rows)])
    assert record.summary["accuracy"] == pytest.approx((each * sizes).sum() / sizes.sum())
    assert record.summary["accuracy_mean"] == pytest.approx(each.mean())
    for found in (record.summary["accuracy"], record.summary["accuracy_mean"]):
        assert found != pytest.approx(of_clusters)


def test_sr_fcas_clients_without_a_cluster_are_not_left_out_of_its_figures(small: Make) -> None:
    """With this threshold no two clients are near each other: all components are too small."""
    server = small("sr_fca", "method.one_shot_rounds=1", "method.smallest=3", "method.threshold=1e-6", UNEQUAL)
    for number in (1, 2):
        record = server.run_round(number)
        each, sizes = record.clients["accuracy"], record.clients["n_test"]
        assert record.clients["client"].tolist() == EVERYONE.tolist()
        assert (sizes > 0).all()
        assert record.summary["accuracy"] == pytest.approx((each * sizes).sum() / sizes.sum())
    assert (assigned(server) >= 0).all()


# -- who is there ----------------------------------------------------------------------------------------------------


def test_absent_clients_have_no_say_in_a_split_of_cfl(small: Make) -> None:
    """Neither untrained models, nor similarities of zero, stand in for updates that were not made."""
    server = small("cfl", *SPLIT_ALWAYS, "participation.count=7")
    cohort = server._cohort(1)
    start = server.fed.initial[: server.fed.layout.parameters]
    server.run_round(1)
    updates = (server.fed.collect(cohort) - start).astype(np.float64)
    halves, rows = bipartition(cosine(updates, updates)), assigned(server)
    assert np.array_equal(rows[cohort][:, None] == rows[cohort], halves[:, None] == halves)
    assert set(rows[cohort]) == {0, 1}
    assert (rows[np.setdiff1d(EVERYONE, cohort)] == 0).all()


# -- the page that tells of them -------------------------------------------------------------------------------------


def test_the_page_on_methods_has_every_method_in_order_and_names_tests_that_are_there() -> None:
    here = Path(__file__).parent
    page = (here.parent / "docs" / "methods.md").read_text()
    headings = [name for line in re.findall(r"^## (.+)$", page, re.M) for name in line.split(", ") if name in METHODS]
    assert headings == list(METHODS)
    named = re.findall(r"`(test_\w+)`(?: \((test_\w+\.py)\))?", page)
    assert len(named) > 40
    for name, file in named:
        assert f"\ndef {name}(" in (here / (file or Path(__file__).name)).read_text(), f"{name} is not in {file}"
