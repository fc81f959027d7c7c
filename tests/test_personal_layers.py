"""Shared layers over personal ones: what is tested, what travels, and that nothing shared alone is FedAvg."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rayfl.client.passes import Split
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.federation import Mixture, Models, Overlay, Personal, everyone
from rayfl.federation.interface import Federation
from rayfl.models import Part
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

Make = Callable[..., Server]

CLIENTS = np.arange(12)
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=3", "local.lr=0.1", "rounds=4"]
SMALL += ["partition.samples=[20, 40]", "partition.public=0.1"]


@pytest.fixture
def small(serial_server: Make) -> Make:
    return lambda method, *overrides: serial_server(*SMALL, f"method.name={method}", *overrides)


def assert_same_scores(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected) == ["accuracy", "macro_f1", "loss"]
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize(("network", "fraction"), [("digits_cnn", 1.0), ("with_norm:Net", 0.4)])
def test_fedtsdp_that_never_clusters_is_fedavg_bit_for_bit(
    small: Make, bn_module: str, network: str, fraction: float
) -> None:
    """One stack of shared layers for all: clients with their own model are tested in FedAvg's passes too."""
    words = ["partition.kind=iid", f"model.name={network}", "partition.validation=0.2"]
    words += [f"participation.fraction={fraction}"]
    tsdp, fedavg = small("fedtsdp", "method.hopkins=0.999", *words), small("fedavg", *words)
    for number in range(1, 5):
        found, expected = tsdp.run_round(number), fedavg.run_round(number)
        assert not found.extras["clustered"] and found.extras["shared_layers"] == 3
        assert np.array_equal(tsdp.method.state.models[0], fedavg.method.state.model)
        for name in ("accuracy", "macro_f1", "loss", "accuracy_mean", "macro_f1_mean", "bytes_up", "bytes_down"):
            assert found.summary[name] == expected.summary[name], name
        for name in ("accuracy", "macro_f1", "loss"):
            np.testing.assert_array_equal(found.clients[name], expected.clients[name], err_msg=name)
            assert found.extras[f"validation_{name}"] == expected.extras[f"validation_{name}"]
    assert expected.summary["accuracy"] > 0.2  # of ten classes: something was learnt


def laid_over(fed: Federation, shared: Models, own: dict[int, np.ndarray]) -> np.ndarray:
    """By hand, tensor by tensor: each client's model for an overlay of these."""
    vectors = np.stack([own.get(client, fed.initial) for client in range(fed.clients)])
    for name, where, layer in zip(fed.layout.names, fed.layout.slices, fed.layout.layer_of, strict=True):
        travels = {"all": True, "backbone": layer < 2, 1.5: layer == 0 or name == "1.weight", 1: layer == 0}
        if travels[shared.part]:
            rows = np.flatnonzero(shared.choice >= 0)
            vectors[rows, where] = shared.stack[shared.choice[rows], where]
    return vectors


@pytest.mark.parametrize("part", ["all", "backbone", 1.5, 1])
def test_an_overlay_is_a_part_of_the_shared_model_over_the_clients_own(small: Make, bn_module: str, part: Part) -> None:
    """Layers 0, 1 (batch norm) and 5. Clients 0 to 7 have a model of their own, 3 and 9 are handed none."""
    fed = small("fedavg", f"model.name={bn_module}", "partition.validation=0.2", "local.lr=0.5").fed
    fed.begin_round(1)
    fed.train(CLIENTS, slot="others")
    stack = fed.collect(CLIENTS[:2], slot="others", buffers=True)
    fed.train(CLIENTS[:8], keep=True)
    own = dict(enumerate(fed.collect(CLIENTS[:8], buffers=True)))
    choice = CLIENTS % 2
    choice[[3, 9]] = -1
    shared = Models(stack, choice, part)
    vectors, rows = np.unique(laid_over(fed, shared, own), axis=0, return_inverse=True)
    assert len(vectors) == (4 if part == "all" else 11)  # with "all": two rows, client 3's own, the initial one
    by_hand = Models(vectors, rows.ravel())
    splits: tuple[Split, ...] = ("test", "validation")
    for split in splits:
        assert_same_scores(fed.evaluate(Overlay(shared), split), fed.evaluate(by_hand, split))
    beside = everyone(stack[0], fed.clients)
    mixed, expected = (Mixture((beside, tested), "logits") for tested in (Overlay(shared), by_hand))
    assert_same_scores(fed.evaluate(mixed), fed.evaluate(expected))
    nobodys = Overlay(shared, Personal("nobody's"))  # over the initial model
    vectors, rows = np.unique(laid_over(fed, shared, {}), axis=0, return_inverse=True)
    assert len(vectors) == 3
    assert_same_scores(fed.evaluate(nobodys), fed.evaluate(Models(vectors, rows.ravel())))


def test_clients_with_the_same_shared_model_share_passes_unless_they_have_layers_of_their_own(small: Make) -> None:
    fed = small("fedavg").fed
    fed.begin_round(1)
    fed.train(CLIENTS, keep=True)

    def plan(*tested: Any) -> tuple[list, list]:
        tasks, bound = fed._places.plan_evaluation(tested, fed.n_test)
        return [who.tolist() for _, who in tasks], [who.tolist() for (_, who), _ in bound]

    everything, one_by_one = everyone(fed.initial, fed.clients), [[client] for client in CLIENTS]
    assert plan(everything) == ([CLIENTS.tolist()], [])
    for part in ("all", len(fed.layout.layers)):
        assert plan(Overlay(everyone(fed.initial, fed.clients, part))) == ([CLIENTS.tolist()], [])
    assert plan(Overlay(everyone(fed.initial, fed.clients, "backbone"))) == ([], one_by_one)
    assert plan(Personal()) == ([], one_by_one)


def test_fedper_is_tested_with_the_averaged_backbone_and_reports_the_trained_models_too(small: Make) -> None:
    words = ["partition.kind=dirichlet", "partition.alpha=0.2", "local.lr=0.3", "local.steps=6"]
    server = small("fedper", "participation.fraction=0.5", *words)
    fed = server.fed
    for number in (1, 2):
        record = server.run_round(number)
    has = CLIENTS[fed.has_model(CLIENTS)]
    assert 6 <= len(has) < 12
    models = np.tile(fed.initial, (12, 1))
    models[has] = fed.collect(has, buffers=True)
    trained = fed.evaluate(Models(models, CLIENTS))
    models[:, fed.layout.backbone] = server.method.state.backbone[fed.layout.backbone]
    vectors, rows = np.unique(models, axis=0, return_inverse=True)
    laid = fed.evaluate(Models(vectors, rows.ravel()))
    np.testing.assert_array_equal(record.clients["loss"], laid["loss"])
    assert record.summary["accuracy"] == np.average(laid["accuracy"], weights=fed.n_test)
    weighted = np.average(trained["accuracy"], weights=fed.n_test)
    assert record.extras["trained_accuracy"] == pytest.approx(weighted, rel=1e-12) != record.summary["accuracy"]


def test_ditto_reports_fedavgs_accuracy_as_that_of_its_global_model(small: Make) -> None:
    ditto, fedavg = small("ditto"), small("fedavg")
    for number in (1, 2, 3):
        found, expected = ditto.run_round(number), fedavg.run_round(number)
        assert found.extras["global_accuracy"] == expected.summary["accuracy"]
    assert found.summary["accuracy"] != expected.summary["accuracy"]


def test_half_layers_and_personal_statistics_do_not_travel(small: Make, bn_module: str) -> None:
    """Down goes what is shared. Up goes all, since the server predicts with whole models and compares weights."""
    words = ["method.hopkins=0.999", f"model.name={bn_module}", "method.shared_layers=1.5"]
    server = small("fedtsdp", *words)
    record = server.run_round(1)
    shared = 4 * 9 + 4 + 4  # a convolution of four 3 x 3 kernels and its biases, the weights of the batch norm
    assert record.summary["bytes_down"] == 12 * 4 * shared
    assert record.summary["bytes_up"] == 12 * 4 * server.fed.layout.size
    models = server.fed.collect(CLIENTS, buffers=True)
    assert len(np.unique(models[:, server.fed.layout.buffers], axis=0)) == 12
    assert not server.method.state.models[:, shared:].any()  # neither the rest of the layer nor its statistics
    started = server.method.state.models[0].copy()
    server.fed.begin_round(2)
    server.fed.train(CLIENTS, start=Models(started[None], np.zeros(12, int), 1.5), keep=True)
    assert server.fed.ledger.bytes_down == 12 * 4 * shared


def test_more_shared_layers_than_the_network_has_are_refused(small: Make) -> None:
    small("fedtsdp", "method.shared_layers=3")
    with pytest.raises(InputError, match=r"method\.shared_layers=3\.5 is more than the network has: use at most 3, or"):
        small("fedtsdp", "method.shared_layers=3.5")
    for value in ("0", "1.3"):
        with pytest.raises(InputError, match=rf"method\.shared_layers={value}"):
            small("fedtsdp", f"method.shared_layers={value}")


def test_the_divergences_of_a_large_cohort_are_refused() -> None:
    words = ["method.name=fedtsdp", "method.report_divergence=true", "partition.clients=501", "federation=serial"]
    with pytest.raises(InputError, match=r"method\.report_divergence=True: a matrix of 501 clients .* at most 500"):
        prepare(load_config(None, words))
    prepare(load_config(None, [*words, "participation.count=5"]))


def test_a_checkpoint_with_a_part_that_the_network_does_not_have_is_refused(small: Make) -> None:
    server = small("fedtsdp")
    server.run_round(1)
    snapshot = server.snapshot()
    tree, _ = snapshot.method
    server.restore(snapshot)
    tree["fields"]["shared_layers"] = 4.0
    with pytest.raises(InputError, match="its clusters and models do not fit these clients and this network"):
        server.restore(snapshot)
