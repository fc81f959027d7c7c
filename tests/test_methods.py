"""local, fedavg, fedprox: their updates worked out from the clients' own models."""

from collections.abc import Callable

import numpy as np
import pytest

from rayfl.federation import everyone
from rayfl.simulation.server import Server

Make = Callable[..., Server]


def test_fedavg_is_the_mean_of_the_trained_models_weighted_by_samples(serial_server: Make) -> None:
    sizes = ["partition.kind=iid", "partition.samples=[20, 60]", "local.steps=3"]
    server = serial_server("method.name=fedavg", "participation.count=6", *sizes)
    server.run_round(1)
    fed, cohort = server.fed, server._cohort(1)
    assert len(set(fed.n_train[cohort])) > 1  # else the weights would not show
    expected = np.average(fed.collect(cohort).astype(np.float64), axis=0, weights=fed.n_train[cohort])
    np.testing.assert_allclose(server.method.state.model[: fed.layout.parameters], expected, rtol=1e-5, atol=1e-8)


def test_every_fedavg_client_starts_from_the_same_model(serial_server: Make) -> None:
    """A trap of public code: clients that share one object train one after the other, not side by side."""
    server = serial_server("method.name=fedavg", "local.steps=3")
    server.run_round(1)
    together = server.fed.collect(np.arange(20))
    alone = serial_server("method.name=fedavg", "local.steps=3")
    alone.fed.begin_round(1)
    for client in range(20):
        alone.fed.train(np.array([client]), start=everyone(alone.fed.initial, 20))
        assert np.array_equal(alone.fed.collect(np.array([client]))[0], together[client])


def test_fedprox_pulls_clients_toward_the_global_model_and_does_nothing_at_zero(serial_server: Make) -> None:
    """A trap of public code: a proximal term without gradient does nothing at any strength."""

    def drift(*overrides: str) -> float:
        server = serial_server("local.steps=5", "local.lr=0.1", *overrides)
        server.run_round(1)
        moved = server.fed.collect(np.arange(20)) - server.fed.initial[: server.fed.layout.parameters]
        return float(np.linalg.norm(moved, axis=1).mean())

    plain = drift("method.name=fedavg")
    assert drift("method.name=fedprox", "method.mu=0.0") == plain
    assert drift("method.name=fedprox", "method.mu=1.0") < 0.95 * plain
    assert drift("method.name=fedprox", "method.mu=5.0") < 0.6 * plain


def test_local_clients_go_on_from_where_they_stopped_and_share_nothing(serial_server: Make) -> None:
    server = serial_server("method.name=local", "participation.fraction=0.5", "local.steps=2")
    server.run_round(1)
    cohort = server._cohort(1)
    before = server.fed.collect(cohort)
    record = server.run_round(2)
    resting = np.setdiff1d(cohort, server._cohort(2))
    assert len(resting)  # else nothing would be compared
    kept = server.fed.collect(resting)
    assert np.array_equal(kept, before[np.searchsorted(cohort, resting)])
    assert record.clusters is None
    assert record.summary["bytes_up"] == record.summary["bytes_down"] == 0


def test_who_never_took_part_is_tested_with_the_initial_model(serial_server: Make) -> None:
    server = serial_server("method.name=local", "participation.count=2", "local.steps=20")
    untrained = server.fed.evaluate(everyone(server.fed.initial, 20))
    record = server.run_round(1)
    never = np.flatnonzero(~record.clients["trained"])
    assert len(never) == 18
    assert np.array_equal(record.clients["loss"][never], untrained["loss"][never])


def test_metrics_are_weighted_by_test_size_and_plain(serial_server: Make) -> None:
    server = serial_server("method.name=fedavg", "partition.kind=iid", "partition.samples=[20, 200]", "local.steps=5")
    record = server.run_round(1)
    accuracy, n = record.clients["accuracy"], record.clients["n_test"]
    assert len(set(n)) > 1
    assert record.summary["accuracy"] == pytest.approx((accuracy * n).sum() / n.sum())
    assert record.summary["accuracy_mean"] == pytest.approx(accuracy.mean())


def test_rounds_without_evaluation_say_who_trained_and_nothing_else(serial_server: Make) -> None:
    server = serial_server(
        "method.name=fedavg", "evaluate.every=2", "participation.count=3", "rounds=3", "local.steps=1"
    )
    first, second, last = (server.run_round(n) for n in (1, 2, 3))
    assert "accuracy" not in first.summary
    assert first.clients["client"].tolist() == server._cohort(1).tolist() and first.clients["trained"].all()
    assert not {"accuracy", "macro_f1", "loss"} & set(first.clients)
    assert "accuracy" in second.summary
    assert len(second.clients["client"]) == 20
    assert "accuracy" in last.summary  # the last round is always evaluated


def test_the_learning_rate_decays_by_the_round(serial_server: Make) -> None:
    """With a decay of 0.1, round 3 moves a client by a hundredth of what the same batches would have done."""

    def moved(decay: float) -> float:
        server = serial_server("method.name=fedavg", "local.steps=1", f"local.lr_decay={decay}")
        server.fed.begin_round(3)
        server.fed.train(np.array([0]))
        return float(np.linalg.norm(server.fed.collect(np.array([0]))[0] - server.fed.initial))

    assert moved(0.1) == pytest.approx(0.01 * moved(1.0), rel=1e-3)
