"""The traps that public code of these methods fell into: one claim each that we did not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from rayfl.client.worker import Worker
from rayfl.clustering import bipartition, components, cosine
from rayfl.config import data_config, load_config, partition_config
from rayfl.data import make_partition
from rayfl.data.sources import load_dataset
from rayfl.federation import FeatureContrast, Models, ParameterContrast, everyone, library
from rayfl.federation.serial import SerialFederation
from rayfl.methods.sr_fca import SRFCAState
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

Make = Callable[..., Server]

EVERYONE = np.arange(12)
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=3", "local.lr=0.1", "rounds=8"]
SMALL += ["evaluate.every=8", "model.name=mlp", "model.options.hidden=16"]


@pytest.fixture
def small(serial_server: Make) -> Make:
    return lambda method, *overrides: serial_server(*SMALL, f"method.name={method}", *overrides)


def assigned(server: Server) -> np.ndarray:
    """Everyone's cluster as it is now."""
    rows = server.method.assignment()
    assert rows is not None
    return rows.copy()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# -- "Regularisers built from state_dict() carry no gradient, so FedProx, CKS and the CAM pull did nothing" ----------


@pytest.mark.parametrize(
    ("method", "options", "strength"),
    [
        ("fedprox", [], "method.mu"),
        ("fedprox_ensemble", ["method.clusters=1"], "method.mu"),
        ("ditto", [], "method.lam"),
        ("cgpfl", ["method.clusters=1"], "method.mu"),
        (
            "fesem",
            ["method.clusters=1", "method.addons=[cam]", "method.cam.warmup=0", "method.pull_reading=cam"],
            "method.pull",
        ),
        ("ifca", ["method.clusters=1", "method.addons=[cks]"], "method.cks.strength"),
        ("wecfl", ["method.clusters=1", "method.addons=[con_cks]"], "method.cks.strength"),
    ],
)
def test_regularisers_carry_gradient_and_so_hold_clients_together(
    small: Make, method: str, options: list[str], strength: str
) -> None:
    """All are pulled to one model here; at 1 / lr a step ends on it but for the gradient of the loss there."""

    def spread(value: float) -> float:
        server = small(method, *options, f"{strength}={value}", "local.steps=8")
        server.run_round(1), server.run_round(2)
        slot = "personal" if method == "ditto" else "model"
        models = server.fed.collect(EVERYONE, "backbone", slot=slot)
        return float(np.square(models - models.mean(axis=0)).sum())

    assert spread(10.0) < 0.2 * spread(1e-9)


# -- "a temperature variable overwritten inside its loop" ------------------------------------------------------------
# From step to step: test_terms.py, test_a_term_keeps_its_strength_from_step_to_step.


@pytest.mark.parametrize("on", ["parameters", "representations"])
def test_the_temperature_of_a_contrast_is_the_same_for_every_model_and_every_client(
    small: Make, on: Literal["parameters", "representations"]
) -> None:
    """The order of the cluster models, and who trained before, leave no trace."""
    fed = small("ifca").fed
    stack = fed.initial_models(4)
    fed.begin_round(1)

    def trained(order: list[int], clients: list[int]) -> np.ndarray:
        own = np.full(12, order.index(1))
        kind = ParameterContrast if on == "parameters" else FeatureContrast
        contrast = kind(Models(stack[order], own), temperature=0.3, weight=2.0)
        fed.train(np.array(clients), start=everyone(stack[0], 12), objective=[contrast])
        return fed.collect(np.array([5]))[0]

    expected = trained([0, 1, 2, 3], [5])
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]):
        close(trained(order, [5]), expected)
    close(trained([0, 1, 2, 3], [9, 2, 5]), expected)


# -- "clients sharing one cluster-model object, so 'averaging' was sequential SGD" -----------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ifca", ["method.clusters=2"]),
        ("wecfl", ["method.clusters=2"]),
        ("ifca", ["method.clusters=2", "method.addons=[cam]", "method.cam.warmup=0"]),
    ],
)
def test_clients_of_a_cluster_do_not_train_one_after_the_other_on_one_model(
    small: Make, method: str, options: list[str]
) -> None:
    server = small(method, *options)
    server.run_round(1)
    fed, state = server.fed, server.method.state
    centres, shared, rows = state.centres.copy(), state.shared.copy(), state.assignment.copy()
    server.run_round(2)
    if method == "ifca":
        rows = state.assignment.copy()  # which it chooses before it trains
    assert np.bincount(rows).max() >= 6  # so there are others to come after
    together = fed.collect(EVERYONE)
    partner = everyone(shared, 12) if server.method.options.addons else None
    for client in (11, 6, 0):
        fed.train(np.array([client]), start=Models(centres, rows), partner=partner)
        close(fed.collect(np.array([client]))[0], together[client])


# -- "no eval() at test time, so batch norm learnt from test data" ---------------------------------------------------


def test_testing_leaves_batch_norm_alone(serial_server: Make, bn_module: str) -> None:
    common = ["data.limit=480", "partition.clients=12", "method.name=ifca", "method.clusters=2", "rounds=3"]
    common += [f"model.name={bn_module}", "local.steps=2"]
    looked_at, left_alone = serial_server(*common), serial_server(*common, "evaluate.every=3")
    for number in (1, 2):
        record = looked_at.run_round(number)
        left_alone.run_round(number)
    centres = looked_at.method.state.centres
    assert looked_at.fed.layout.size > looked_at.fed.layout.parameters  # the running statistics
    assert np.array_equal(centres, left_alone.method.state.centres)
    again = looked_at.fed.evaluate(looked_at.method.eval_models())
    assert np.array_equal(again["loss"], record.clients["loss"])

    # And neither dropout nor the samples tested with it have a say in a client's score, nor in its choice of a cluster.
    fed, client = looked_at.fed, 4
    assert isinstance(fed, SerialFederation)
    worker = fed._worker
    for indices, vector, found in (
        (worker.partition.test_of(client), centres[assigned(looked_at)[client]], again["loss"][client]),
        (worker.partition.train_of(client), centres[1], library.losses(fed, np.array([client]), centres)[0, 1]),
    ):
        inputs, labels = worker.samples(client, indices)
        worker.model.load(vector)
        with torch.no_grad():
            one_by_one = torch.cat([worker.model.module.eval()(x[None]) for x in inputs])
        assert found == pytest.approx(float(cross_entropy(one_by_one, labels)), rel=1e-4)


# -- "K-means without a seed or a warm start, so that labels jump" ---------------------------------------------------


@pytest.mark.parametrize("method", ["fesem", "wecfl", "cgpfl"])
def test_cluster_labels_do_not_jump_between_rounds(small: Make, method: str) -> None:
    """Of four planted clusters every one keeps its number, once found, to the end."""
    server = small(method, "method.clusters=4", "local.steps=10", "partition.transform=label_permutation")
    found = []
    for number in range(1, 9):
        server.run_round(number)
        found.append(assigned(server).tolist())
    assert len(set(found[-1])) == 4
    assert found[2:] == [found[-1]] * 6


@pytest.mark.parametrize("method", ["fesem", "wecfl", "cgpfl", "local_kmeans", "fedgroup"])
def test_the_first_k_means_has_a_seed(small: Make, method: str) -> None:
    """Among clients that are all alike the start decides; the run's seed decides the start."""
    more = ["method.clusters=5", "partition.kind=iid", *(["method.warmup=1"] if method == "local_kmeans" else [])]
    servers = [small(method, *more) for _ in range(4)]
    for server in servers:
        server.run_round(1)
    assert len({tuple(assigned(server)) for server in servers}) == 1


# -- "per-client metrics weighted by range(N)" -----------------------------------------------------------------------


def test_metrics_are_weighted_by_test_size_not_by_position(small: Make) -> None:
    unequal = ["partition.kind=iid", "partition.samples=[10, 70]", "method.finetune=true", "rounds=1"]
    record = small("fedac", *unequal).run_round(1)
    sizes = record.clients["n_test"]
    for name in ("accuracy", "macro_f1", "loss"):
        each = record.clients[name]
        assert record.summary[name] == pytest.approx((each * sizes).sum() / sizes.sum())
        assert record.summary[name] != pytest.approx((each * EVERYONE).sum() / EVERYONE.sum())
    # A share of all test samples is a whole number of them; by other weights it would be none.
    for share in (record.summary["accuracy"], record.extras["centre_accuracy"], record.extras["finetuned_accuracy"]):
        assert share * sizes.sum() == pytest.approx(round(share * sizes.sum()), abs=1e-6)


# -- "labels indexed by position instead of by client id, which breaks with partial participation" -------------------


@pytest.mark.parametrize("method", ["ifca", "fesem", "wecfl", "cgpfl", "fedgroup"])
def test_labels_belong_to_client_ids_under_partial_participation(small: Make, method: str) -> None:
    server = small(
        method, "method.clusters=2", "participation.count=5", "partition.samples=[20, 40]", "evaluate.every=1"
    )
    fed = server.fed
    labels = np.full(12, -1)
    for number in (1, 2, 3):
        cohort = server._cohort(number)
        assert cohort.tolist() != list(range(5))  # else position and id would be the same
        record = server.run_round(number)
        found = assigned(server)
        took_part = cohort if method != "cgpfl" else np.flatnonzero((labels >= 0) | np.isin(EVERYONE, cohort))
        assert (found[took_part] >= 0).all()
        absent = np.setdiff1d(EVERYONE, took_part)
        assert np.array_equal(found[absent], labels[absent])
        labels = found
        assert np.array_equal(record.clients["cluster"], labels)
        # A centre is the mean of the models of those whose ids say they are in it.
        weights = fed.n_train[took_part] if method in ("ifca", "wecfl", "fedgroup") else np.ones(len(took_part))
        models = fed.collect(took_part).astype(np.float64)
        for k in np.unique(labels[took_part]):
            mine = labels[took_part] == k
            expected = np.average(models[mine], axis=0, weights=weights[mine])
            close(server.method.state.centres[k], expected)
    assert len(np.unique(labels[labels >= 0])) == 2


def test_a_clients_label_is_the_one_its_own_data_ask_for_whoever_else_is_there(small: Make) -> None:
    server = small("ifca", "method.clusters=4", "participation.count=5")
    for number in (1, 2, 3):
        server.fed.begin_round(number)
        least = library.losses(server.fed, EVERYONE, server.method.state.centres).argmin(axis=1)
        cohort = server._cohort(number)
        server.run_round(number)
        assert np.array_equal(assigned(server)[cohort], least[cohort])
        assert len(set(least)) > 1


# -- "Dirichlet partitions that drop data or hand the same sample to two clients" ------------------------------------
# For every kind, on made-up data: test_partitions.py, test_nobody_gets_a_sample_twice_and_none_is_invented.


@pytest.mark.parametrize("keys", [{"kind": "dirichlet", "alpha": 0.1}, {"kind": "dirichlet", "alpha": 10.0}])
@pytest.mark.parametrize("clients", [7, 40])
def test_no_sample_is_dropped_or_dealt_twice(keys: dict[str, object], clients: int) -> None:
    dataset = load_dataset(data_config(source="digits"), seed=0)
    for seed in range(5):
        partition = make_partition(partition_config(clients=clients, **keys), dataset, seed)
        dealt = np.concatenate([partition.train, partition.test])
        assert np.array_equal(np.sort(dealt), np.arange(1797))
        of_clients = [f(i) for i in range(clients) for f in (partition.train_of, partition.test_of)]
        assert sum(map(len, of_clients)) == 1797


# -- "thresholds compared with losses divided twice" -----------------------------------------------------------------


def test_a_threshold_means_the_same_for_any_number_of_samples() -> None:
    """SR-FCA's lambda: whoever has each sample three times has the same losses, and so the same clusters.

    Everyone trains on all it has in each step, so the models are the same too.
    """

    def one_shot(times: int, threshold: float | None) -> SRFCAState:
        chosen = [] if threshold is None else [f"method.threshold={threshold}"]
        more = ["method.name=sr_fca", "method.one_shot_rounds=2", "method.smallest=1", "federation=serial"]
        p = prepare(load_config(None, [*SMALL, *more, "partition.samples=[20, 40]", "local.batch_size=500", *chosen]))
        repeated = replace(
            p.partition,
            train=np.concatenate([np.tile(p.partition.train_of(i), times) for i in range(12)]),
            train_offsets=p.partition.train_offsets * times,
        )
        facts = replace(p.facts, n_train=repeated.n_train)
        fed = SerialFederation(facts, Worker(p.config, p.dataset, repeated))
        try:
            server = Server(p.config, fed, repeated.true_cluster)
            server.run_round(1), server.run_round(2)
        finally:
            fed.close()
        assert isinstance(server.method.state, SRFCAState)
        return server.method.state

    once, thrice = one_shot(1, None), one_shot(3, None)
    np.testing.assert_allclose(thrice.losses, once.losses, rtol=1e-3)
    assert thrice.threshold == pytest.approx(once.threshold, rel=1e-3)
    distances = np.sort(((once.losses + once.losses.T) / 2)[np.triu_indices(12, 1)])
    assert 1 < distances[0] < distances[-1] < 10  # of mean cross-entropies over ten classes
    few_edges = float((distances[4] + distances[5]) / 2)
    first, third = one_shot(1, few_edges), one_shot(3, few_edges)
    assert np.array_equal(third.assignment, first.assignment)
    assert 7 <= len(np.unique(first.assignment)) < 12  # five edges; with losses of a third they would be all


# -- "from the second split on, CFL's clusters held positions inside the cluster that was split, not client numbers" -


def test_cfls_second_split_keeps_client_numbers(small: Make) -> None:
    """Every cluster of at least four is split in every round after the first; so the second splits parts of a part."""
    server = small("cfl", "method.warmup=1", "method.eps1=100", "method.eps2=1e-6")
    fed = server.fed
    server.run_round(1)
    centres, before = server.method.state.centres.copy(), assigned(server)
    splits_of_parts = 0
    for number in (2, 3, 4):
        server.run_round(number)
        after, models = assigned(server), fed.collect(EVERYONE)
        updates = (models - centres[before][:, : fed.layout.parameters]).astype(np.float64)
        for cluster in np.unique(before):
            members = np.flatnonzero(before == cluster)
            if len(members) < 4:
                assert (after[members] == cluster).all()
                continue
            halves = bipartition(cosine(updates[members], updates[members]))
            stay, leave = members[halves == 0], members[halves == 1]
            assert (after[stay] == cluster).all()
            assert len(set(after[leave])) == 1
            assert after[leave[0]] not in before
            splits_of_parts += int(not np.array_equal(members, np.arange(len(members))))
        for cluster in np.unique(after):
            mine = after == cluster
            expected = np.average(models[mine].astype(np.float64), axis=0, weights=fed.n_train[mine])
            close(server.method.state.centres[cluster, : fed.layout.parameters], expected)
        centres, before = server.method.state.centres.copy(), after
    assert splits_of_parts >= 1  # of clusters whose clients' numbers are not their positions


# -- "RECLUSTER dropped a cluster and numbered the others anew, but not their models" --------------------------------


def test_a_cluster_that_recluster_empties_takes_its_model_with_it(small: Make) -> None:
    server = small("sr_fca", "method.one_shot_rounds=2", "method.smallest=1", "method.threshold=1e-6")
    server.run_round(1), server.run_round(2)
    method, fed = server.method, server.fed
    state = method.state
    assert isinstance(state, SRFCAState)
    alone = state.alone.copy()
    useless = alone[0] * 30.0  # sure of itself, and wrong on most
    state.centres = np.stack([useless, alone[:6].mean(axis=0), alone[6:].mean(axis=0)])
    state.assignment[:] = np.repeat([0, 1, 2], 4)
    losses = library.losses(fed, EVERYONE, state.centres)
    centres = state.centres.copy()
    method._recluster_and_merge()  # type: ignore[attr-defined]
    assert (losses.argmin(axis=1) > 0).all()
    assert len(state.centres) == 2  # the first is gone, and nothing is near enough to merge
    close(state.centres, centres[1:])
    assert set(state.assignment) == {0, 1}


# -- "ONE_SHOT's clusters were a random client and its neighbours, so that chains fell apart by the draw" -------------


def test_one_shots_clusters_are_connected_components_not_a_client_and_its_neighbours() -> None:
    line = np.array([[0.0], [1.0], [2.0], [3.0], [9.0], [9.5]])  # the ends of the chain are no neighbours
    distances = np.abs(line - line.T)
    for order in (np.arange(6), np.array([3, 0, 5, 2, 4, 1])):
        found = components(distances[np.ix_(order, order)], threshold=1.0, smallest=2)
        chain = order < 4
        assert len(set(found[chain])) == len(set(found[~chain])) == 1
        assert set(found) == {0, 1}  # a cluster of exactly the smallest size counts


# -- "Local-KMeans filled every layer of a centroid from the beginning of the flat vector" ----------------------------


def test_local_kmeans_centroids_have_each_layer_in_its_place(small: Make) -> None:
    server = small("local_kmeans", "method.variant=sr_fca", "method.warmup=1", "method.clusters=2")
    server.run_round(1)
    fed, model = server.fed, server.fed._worker.model  # type: ignore[attr-defined]
    rows, centres, models = assigned(server), server.method.state.centres, fed.collect(EVERYONE, buffers=True)

    def layers(vector: np.ndarray) -> list[np.ndarray]:
        model.load(vector)
        return [tensor.detach().numpy().copy() for tensor in model.module.state_dict().values()]

    for cluster in np.unique(rows):
        members = [layers(vector) for vector in models[rows == cluster]]
        for number, layer in enumerate(layers(centres[cluster])):
            close(layer, np.mean([member[number] for member in members], axis=0))
            assert number == 0 or not np.allclose(layer.ravel(), centres[cluster][: layer.size])


# -- "the least loss of a sample was looked for along the samples, not along the models" -----------------------------


def test_shares_of_least_loss_are_counted_over_models_for_each_sample(small: Make) -> None:
    fed = small("fedsoft", "method.clusters=3", "partition.samples=[20, 40]").fed
    assert isinstance(fed, SerialFederation)
    worker, centres = fed._worker, fed.initial_models(3)
    found = library.shares_of_least_loss(fed, np.array([3, 8]), centres)
    for row, client in enumerate((3, 8)):
        inputs, labels = worker.samples(client, worker.partition.train_of(client))
        each = []
        for centre in centres:
            worker.model.load(centre)
            with torch.no_grad():
                each.append(cross_entropy(worker.model.module.eval()(inputs), labels, reduction="none"))
        best = torch.stack(each).argmin(dim=0)
        assert len(best) == len(labels)
        np.testing.assert_allclose(found[row], np.bincount(best.numpy(), minlength=3) / len(labels))


# -- "CAM's clients were assigned by the training accuracy of the cluster's model alone, on ten batches" -------------


def test_cams_clients_are_assigned_by_the_loss_of_the_sum_on_all_their_data(small: Make) -> None:
    server = small("ifca", "method.clusters=3", "method.addons=[cam]", "method.cam.warmup=1", "local.batch_size=2")
    server.run_round(1), server.run_round(2)
    fed, state = server.fed, server.method.state
    assert isinstance(fed, SerialFederation)
    worker, centres, shared = fed._worker, state.centres.copy(), state.shared.copy()
    expected = []
    for client in EVERYONE.tolist():
        inputs, labels = worker.samples(client, worker.partition.train_of(client))
        assert len(labels) > 10 * 2
        outputs = []
        for vector in (shared, *centres):
            worker.model.load(vector)
            with torch.no_grad():
                outputs.append(worker.model.module.eval()(inputs))
        expected.append(int(np.argmin([float(cross_entropy(outputs[0] + own, labels)) for own in outputs[1:]])))
    server.run_round(3)
    assert assigned(server).tolist() == expected
