"""CAM (thesis ch. 7) where its two texts differ, where they are silent, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.federation import Mixture, Models, Personal
from rayfl.federation.serial import SerialFederation
from rayfl.methods import METHODS
from rayfl.methods.clustered import GLOBAL, Clustered
from rayfl.simulation.preparation import prepare, resolve
from rayfl.simulation.server import Server

Make = Callable[..., Server]

CLIENTS = 12
EVERYONE = np.arange(CLIENTS)
SMALL = ["data.limit=480", f"partition.clients={CLIENTS}", "local.steps=2", "local.lr=0.1", "rounds=4"]
SMALL += ["model.name=mlp", "model.options.hidden=16", "method.addons=[cam]"]
UNEQUAL = "partition.samples=[20, 40]"  # else weights by samples would not show
CLUSTERED = [name for name, method in METHODS.items() if issubclass(method, Clustered)]


@pytest.fixture
def cam(serial_server: Make) -> Make:
    return lambda method, *overrides: serial_server(*SMALL, f"method.name={method}", *overrides)


def settled(*overrides: str) -> dict:
    return resolve(load_config(None, [*SMALL, *overrides])).method.options["cam"]


# -- Eq. 6 of CAM and Eq. 7.6 of the thesis --------------------------------------------------------------------------


@pytest.mark.parametrize("damped", [False, True])
def test_a_centre_moves_to_its_clients_mean_or_damped_by_their_share_of_the_samples(
    cam: Make, bn_module: str, damped: bool
) -> None:
    """Thesis Eq. 7.6, and CAM Eq. 6: (1 - n_k / n) W_k + (n_k / n) times the mean. Batch norm: the mean."""
    words = ["method.cam.damped=true"] if damped else []
    norm = [f"model.name={bn_module}", "model.options={}"]
    server = cam("ifca", "method.clusters=2", "method.cam.warmup=0", *words, UNEQUAL, *norm)
    fed, n = server.fed, server.fed.n_train
    before = server.method.state.centres.copy()
    server.run_round(1)
    state, buffers = server.method.state, fed.layout.buffers
    models = fed.collect(EVERYONE, buffers=True).astype(float)
    assert buffers.stop - buffers.start == 8  # mean and variance of four channels
    rows = state.assignment
    assert len(set(rows)) == 2
    for k in range(2):
        members = np.flatnonzero(rows == k)
        mean = np.average(models[members], axis=0, weights=n[members])
        share = n[members].sum() / n.sum() if damped else 1.0
        expected = (1 - share) * before[k] + share * mean
        expected[buffers] = mean[buffers]
        np.testing.assert_allclose(state.centres[k], expected, rtol=1e-4, atol=1e-6)
    expected = np.average(fed.collect(EVERYONE, slot=GLOBAL, buffers=True).astype(float), axis=0, weights=n)  # Eq. 9
    np.testing.assert_allclose(state.shared, expected, rtol=1e-4, atol=1e-6)


# -- "Randomly initialise Theta_1:K and Theta_g" ---------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERED)
def test_the_global_model_begins_with_random_numbers_of_its_own(cam: Make, name: str) -> None:
    server = cam(name)
    fed, state = server.fed, server.method.state
    for other in (fed.initial, *state.centres):
        assert np.linalg.norm(state.shared - other) > 0.5 * np.linalg.norm(fed.initial)
    again = cam(name).method.state.shared
    assert np.array_equal(state.shared, again)  # and by the seed


# -- the warm-up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "rounds", "expected"),
    [
        (["method.name=ifca"], 100, 30),
        (["method.name=fesem"], 20, 6),
        (["method.name=wecfl"], 400, 30),
        (["method.name=ifca"], 3, 0),
        (["method.name=ifca", "method.cam.warmup=7"], 100, 7),
        (["method.name=ifca", "method.cam.residual=false"], 100, 0),
        (["method.name=fedac"], 100, 0),
    ],
)
def test_the_warm_up_in_force_stands_in_the_runs_config(words: list[str], rounds: int, expected: int) -> None:
    assert settled(*words, f"rounds={rounds}")["warmup"] == expected


def test_the_default_warm_up_is_the_one_that_is_done(cam: Make) -> None:
    server = cam("ifca", "rounds=4")
    assert server.config.method.options["cam"]["warmup"] == 1
    server.run_round(1)
    assert (server.method.assignment() == -1).all()
    server.run_round(2)
    assert (server.method.assignment() >= 0).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["method.name=ifca", "method.cam.warmup=4"], r"method\.cam\.warmup=4 is not shorter than rounds=4"),
        (["method.name=fesem", "method.cam.warmup=30"], r"method\.cam\.warmup=30 is not shorter than rounds=4"),
        (["method.name=fedac", "method.cam.warmup=3"], r"warmup=3: only ifca, fesem and wecfl have a warm-up"),
        (["method.name=wecfl", "method.cam.warmup=1", "method.cam.residual=false"], "trained apart .* no warm-up"),
        (["method.name=cfl", "method.cam.residual=false"], r"residual=False: only ifca, fesem and wecfl"),
        (["method.name=fesem", "method.cam.damped=true"], r"damped=True: it is a step of IFCA-CAM"),
        (["method.name=ifca", "method.cam.damped=true", "method.cam.residual=false"], "is not damped"),
        (["method.name=fesem", "method.pull=1.5"], r"method\.pull=1\.5 would step past the centre"),
    ],
)
def test_what_would_do_nothing_or_leave_no_round_is_refused_before_any_work(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        prepare(load_config(None, [*SMALL, "federation=serial", *words]))


# -- "FedAvg + IFCA" and "FedAvg + FeSEM" of Table 7.5 ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["ifca", "fesem"])
def test_without_residuals_it_is_fedavg_and_the_method_trained_apart_bit_for_bit(
    serial_server: Make, name: str
) -> None:
    """Also when fine-tuned; with kept momentum, which must not pass from one of them to the other."""
    common = [*SMALL[:-1], "method.finetune=true", "local.momentum=0.9", "local.keep_momentum=true", UNEQUAL]
    common += ["participation.fraction=0.75", "rounds=3"]
    both = serial_server(*common, f"method.name={name}", "method.addons=[cam]", "method.cam.residual=false")
    average, alone = serial_server(*common, "method.name=fedavg"), serial_server(*common, f"method.name={name}")
    for number in range(1, 4):
        record, _, _ = [server.run_round(number) for server in (both, average, alone)]
        state = both.method.state
        assert np.array_equal(state.shared, average.method.state.model)
        assert np.array_equal(state.centres, alone.method.state.centres)
        assert np.array_equal(state.assignment, alone.method.state.assignment)
        if number < 3:
            own = np.where(state.assignment[:, None] < 0, both.fed.initial, state.centres[state.assignment])
            shared = np.repeat(state.shared[None], CLIENTS, axis=0)
            assert record.summary["accuracy"] == pytest.approx(hits(both, [shared, own]))
    tuned = [average.fed.collect(EVERYONE, slot="fine-tuned 0"), alone.fed.collect(EVERYONE, slot="fine-tuned 0")]
    for number, expected in enumerate(tuned):
        assert np.array_equal(both.fed.collect(EVERYONE, slot=f"fine-tuned {number}"), expected)
    assert record.extras["finetuned_accuracy"] == pytest.approx(hits(both, tuned))


def hits(server: Server, models: list[np.ndarray]) -> float:
    """The share of all test samples that each client's models get right together."""
    assert isinstance(server.fed, SerialFederation)
    worker, right, count = server.fed._worker, 0, 0
    for client in EVERYONE.tolist():
        inputs, labels = worker.samples(client, worker.partition.test_of(client))
        outputs = []
        for stack in models:
            worker.model.load(stack[client])
            with torch.no_grad():
                outputs.append(worker.model.module.eval()(inputs))
        right += int((torch.stack(outputs).sum(0).argmax(1) == labels).sum())
        count += len(labels)
    return right / count


def test_apart_clients_choose_their_cluster_without_the_global_model(cam: Make) -> None:
    server = cam("ifca", "method.clusters=3", "method.cam.residual=false")
    server.run_round(1), server.run_round(2)
    centres = server.method.state.centres.copy()
    server.run_round(3)
    assert isinstance(server.fed, SerialFederation)
    worker = server.fed._worker
    for client in EVERYONE.tolist():
        inputs, labels = worker.samples(client, worker.partition.train_of(client))
        losses = []
        for centre in centres:
            worker.model.load(centre)
            with torch.no_grad():
                losses.append(float(cross_entropy(worker.model.module.eval()(inputs), labels)))
        assert server.method.state.assignment[client] == np.argmin(losses)


# -- what is tested beside the sum -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ifca", "fesem", "cgpfl", "fedsoft"])
def test_the_global_and_the_clusters_model_are_also_tested_alone(cam: Make, name: str) -> None:
    server = cam(name, "local.steps=5", *(["method.cam.warmup=1"] if name in ("ifca", "fesem") else []))
    second = "cluster" if name in ("ifca", "fesem") else "own"
    first = server.run_round(1)
    if second == "cluster":
        assert not {"global_accuracy", "cluster_accuracy"} & first.extras.keys()  # there is no sum yet
    record = server.run_round(2)
    state, fed = server.method.state, server.fed
    own = fed.collect(EVERYONE, buffers=True) if second == "own" else state.centres[state.assignment]
    shared = np.repeat(state.shared[None], CLIENTS, axis=0)
    assert record.extras["global_accuracy"] == pytest.approx(hits(server, [shared]))
    assert record.extras[f"{second}_accuracy"] == pytest.approx(hits(server, [own]))
    assert record.summary["accuracy"] == pytest.approx(hits(server, [shared, own]))
    assert len({record.summary["accuracy"], record.extras["global_accuracy"], record.extras[f"{second}_accuracy"]}) > 1
    tested = server.method.eval_models()
    assert isinstance(tested, Mixture)
    assert [type(part) for part in tested.parts] == [Models, Personal if second == "own" else Models]


def test_the_fresh_models_of_oneshot_ifca_are_other_draws_than_the_global_one(
    cam: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["method.one_shot_rounds=1", "method.begin=fresh", "method.threshold=0.0001", "method.smallest=1"]
    server = cam("oneshot_ifca", *words)
    shared, drawn = server.method.state.shared.copy(), []
    draw = server.fed.initial_models
    monkeypatch.setattr(server.fed, "initial_models", lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1])
    server.run_round(1)
    server.run_round(2)
    assert len(drawn) == 1
    assert len(drawn[0]) == CLIENTS  # no two clients are near each other
    assert not (drawn[0] == shared).all(axis=1).any()
