"""What must hold for each method and add-on: the same bits everywhere, partial participation, planted clusters."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfl.client.worker as worker
from rayfl.client.vectorised import train_together
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.federation import library
from rayfl.federation.interface import Federation
from rayfl.federation.serial import SerialFederation
from rayfl.methods import METHODS, method_options
from rayfl.results import Storage
from rayfl.simulation.checkpoints import Checkpoints
from rayfl.simulation.preparation import Prepared, prepare
from rayfl.simulation.server import RoundRecord, Server

# Small enough for seconds, with every phase of every method inside eight rounds.
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=2", "local.lr=0.1", "federation=serial", "rounds=8"]
OPTIONS = {
    "local_kmeans": ["method.warmup=3"],
    "cfl": ["method.warmup=1", "method.eps1=5.0", "method.eps2=0.001"],
    "flhc": ["method.warmup=2"],
    "oneshot_ifca": ["method.one_shot_rounds=3"],
    "sr_fca": ["method.one_shot_rounds=2", "method.refine_rounds=2"],
    "fedac": ["method.tune_from=2", "method.tune_every=2"],
    "fedtsdp": ["method.hopkins=0.3", "method.public_batch=20", "method.shrink=0.8", "method.report_divergence=true"],
}
ADDONS = {
    "ifca + cam": ("ifca", ["method.addons=[cam]", "method.cam.warmup=2"]),
    "fesem + cam": ("fesem", ["method.addons=[cam]", "method.cam.warmup=2"]),
    "wecfl + con (parameters)": ("wecfl", ["method.addons=[con]"]),
    "wecfl + con (representations)": ("wecfl", ["method.addons=[con]", "method.con.on=representations"]),
    "fedavg and ifca trained apart": ("ifca", ["method.addons=[cam]", "method.cam.residual=false"]),
    "ifca + cks": ("ifca", ["method.addons=[cks]"]),
    "wecfl + con_cks + finetune": ("wecfl", ["method.addons=[con_cks]", "method.finetune=true"]),
    "fedac + cam": ("fedac", ["method.addons=[cam]"]),
    "sr_fca + cam": ("sr_fca", ["method.addons=[cam]"]),
    "fedac by whole weights": ("fedac", ["method.similarity=cosine", "method.report_similarity=true"]),
    "fedac by L2 and granularity": ("fedac", ["method.similarity=l2", "method.tuning=granularity"]),
    "cfl told K": ("cfl", ["method.clusters=3"]),
    "local_kmeans with own starts": ("local_kmeans", ["method.variant=sr_fca"]),
    "sr_fca by L2": ("sr_fca", ["method.distance=l2"]),
    "cgpfl + cks": ("cgpfl", ["method.addons=[cks]"]),
    "ifca + cam + finetune": ("ifca", ["method.addons=[cam]", "method.cam.warmup=2", "method.finetune=true"]),
    "fedavg + finetune": ("fedavg", ["method.finetune=true"]),
    "fedtsdp + finetune": ("fedtsdp", ["method.finetune=true", "method.draw=tempered", "method.shared_layers=2.5"]),
}
CASES: dict[str, tuple[str, list[str]]] = {name: (name, []) for name in METHODS} | ADDONS


def prepared(case: str, *overrides: str) -> Prepared:
    name, more = CASES[case]
    return prepare(load_config(None, [*SMALL, f"method.name={name}", *OPTIONS.get(name, []), *more, *overrides]))


def serial(p: Prepared) -> SerialFederation:
    return SerialFederation(p.facts, Worker(p.config, p.dataset, p.partition))


def run(p: Prepared, fed: Federation) -> tuple[Server, list[RoundRecord]]:
    server = Server(p.config, fed, p.partition.true_cluster)
    return server, [server.run_round(number) for number in range(1, p.config.rounds + 1)]


def bits(record: RoundRecord) -> dict[str, Any]:
    columns = {f"summary.{k}": v for k, v in record.summary.items() if not k.startswith("seconds")}
    columns |= {f"clients.{k}": v for k, v in record.clients.items()}
    columns |= {f"clusters.{k}": v for k, v in (record.clusters or {}).items()}
    return columns | {f"extras.{k}": v for k, v in record.extras.items()}


@pytest.fixture(scope="module")
def three_actors(ray_session: None) -> Iterator[list[Any]]:
    """Actors that serve every test of this module in turn; they know nothing of the method."""
    import ray

    from rayfl.actors.client_actor import HEALTH, ClientActor
    from rayfl.actors.idle import IDLE

    IDLE.release()  # they hold the CPUs of these
    p = prepared("fedavg")
    data, shares = ray.put(p.dataset), ray.put(p.partition)
    decorate: Any = ray.remote
    remote = decorate(concurrency_groups={HEALTH: 1})(ClientActor).options(num_cpus=1)
    actors = [remote.remote([]) for _ in range(3)]
    ray.get([actor.open.remote(1, p.config, data, shares) for actor in actors], timeout=200)
    yield actors
    for actor in actors:
        ray.kill(actor)


@cache
def with_a_third_per_round(case: str) -> tuple[Prepared, Server, list[RoundRecord]]:
    """Run ten rounds with a third of the clients in each, in this process; for all tests that look at it."""
    p = prepared(case, "participation.fraction=0.3", "rounds=10")
    fed = serial(p)
    try:
        server, records = run(p, fed)
    finally:
        fed.close()
    return p, server, records


@pytest.mark.parametrize("case", CASES)
def test_both_federations_give_the_same_bits(case: str, three_actors: list[Any]) -> None:
    import ray

    from rayfl.actors.server_actor import RayFederation

    p, _, expected = with_a_third_per_round(case)
    # Each time: with FedTSDP some samples are public, and its clients have others than those of other methods.
    ray.get([actor.open.remote(1, p.config, p.dataset, p.partition) for actor in three_actors], timeout=60)
    on_ray = RayFederation(p.facts, 1, three_actors)
    on_ray.forget()
    _, found = run(p, on_ray)
    for one, other in zip(expected, found, strict=True):
        left, right = bits(one), bits(other)
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {one.number}")


@pytest.mark.parametrize("case", CASES)
def test_a_third_of_the_clients_per_round_is_enough_for_every_method(case: str) -> None:
    """Who never took part has no cluster or the one all begin in; all who did have one; everybody can be tested."""
    _, server, records = with_a_third_per_round(case)
    last = records[-1]
    for name in ("accuracy", "macro_f1", "loss"):
        assert np.isfinite(last.clients[name]).all()
    assignment = server.method.assignment()
    if assignment is not None:
        took_part = np.unique(np.concatenate([server._cohort(n) for n in range(1, 11)]))
        assert (assignment[took_part] >= 0).all()
        assert last.clusters is not None
        assert last.clusters["size"].sum() == (assignment >= 0).sum()


@pytest.mark.parametrize("clusters", [15, 40])
@pytest.mark.parametrize("name", ["ifca", "fesem", "wecfl", "cgpfl", "fedgroup", "fedsoft", "local_kmeans", "flhc"])
def test_more_clusters_than_clients_are_no_trouble(name: str, clusters: int) -> None:
    p = prepared(name, f"method.clusters={clusters}", "rounds=5", "participation.fraction=0.3")
    fed = serial(p)
    try:
        _, records = run(p, fed)
    finally:
        fed.close()
    assert np.isfinite(records[-1].summary["accuracy"])


PLANTED = {
    "ifca": ["method.clusters=4", "seed=1"],
    "fesem": ["method.clusters=4"],
    "wecfl": ["method.clusters=4"],
    "local_kmeans": ["method.clusters=4", "method.warmup=6"],
    "flhc": ["method.clusters=4", "method.warmup=3", "rounds=6"],  # what it finds once, it keeps
    "fedgroup": ["method.clusters=4", "local.steps=30", "rounds=4"],
    "cgpfl": ["method.clusters=4"],
    "cfl": ["method.warmup=3", "method.eps1=1.0", "method.eps2=0.1"],
    "oneshot_ifca": ["method.one_shot_rounds=8"],
    "sr_fca": ["method.one_shot_rounds=8", "method.refine_rounds=6"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_planted_clusters_are_recovered(name: str) -> None:
    p = prepared(name, "data.limit=1797", "local.steps=10", "rounds=20", "evaluate.every=20", *PLANTED[name])
    fed = serial(p)
    try:
        _, records = run(p, fed)
    finally:
        fed.close()
    assert records[-1].summary["ari"] == 1.0, records[-1].summary


def test_addons_are_refused_where_they_make_no_sense() -> None:
    for name in ("local", "fedavg", "fedper", "ditto", "fedtsdp"):
        with pytest.raises(InputError, match=r"method\.addons=\['cam'\]: there is no key 'addons'"):
            method_options(load_config(None, [f"method.name={name}", "method.addons=[cam]"]).method)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["method.addons=[camm]"], r"did you mean 'cam'"),
        (["method.cam.warmup=3"], r"method\.cam is not used.*method\.addons"),
        (["method.addons=[con, con]"], "names one twice"),
        (["method.addons=[con_cks, con]"], "name it alone"),
        (["method.addons=[con_cks]", "method.con.on=representations"], "compares the parameters of the head"),
        (["method.addons=[con_cks]", "method.con.part=all"], "compares the parameters of the head"),
        (["method.addons=[cam, cks]"], "use one of the two"),
        (["method.addons=[cam, con_cks]"], "use one of the two"),
        (["method.addons=[cam]", "method.cam.warmups=3"], r"method\.cam\.warmups=3.*did you mean 'warmup'"),
    ],
)
def test_faults_of_addons_are_told(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        method_options(load_config(None, ["method.name=ifca", *words]).method)


def test_fine_tuning_a_vote_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.finetune=True: an ensemble's vote"):
        prepared("fedavg_ensemble", "method.finetune=true")


def test_every_method_says_where_it_is_from_and_what_it_does() -> None:
    for name, method in METHODS.items():
        assert method.paper, name
        assert method.__doc__, name


@pytest.fixture
def quick() -> Iterator[Callable[..., Server]]:
    opened = []

    def make(case: str, *overrides: str) -> Server:
        p = prepared(case, *overrides)
        fed = serial(p)
        opened.append(fed)
        return Server(p.config, fed, p.partition.true_cluster)

    yield make
    for fed in opened:
        fed.close()


def test_ifca_takes_the_model_of_least_loss_and_averages_those_who_took_it(quick: Callable[..., Server]) -> None:
    server = quick("ifca", "method.clusters=3")
    fed, clients = server.fed, np.arange(12)
    fed.begin_round(1)
    centres = server.method.state.centres.copy()
    losses = library.losses(fed, clients, centres)
    server.run_round(1)
    state = server.method.state
    assert np.array_equal(state.assignment, losses.argmin(axis=1))
    models = fed.collect(clients)
    for k in range(3):
        members = np.flatnonzero(state.assignment == k)
        row = state.centres[k, : fed.layout.parameters]
        if not len(members):
            assert np.array_equal(row, centres[k, : fed.layout.parameters])  # it stays, and can win clients back
        else:
            expected = np.average(models[members].astype(float), axis=0, weights=fed.n_train[members])
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)


def test_losses_are_means_per_sample_of_each_model_on_each_clients_own_training_data(
    quick: Callable[..., Server],
) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    server = quick("fedavg")
    fed = server.fed
    assert isinstance(fed, SerialFederation)
    worker, stack = fed._worker, fed.initial_models(3)
    found = library.losses(fed, np.array([7, 2]), stack)
    for row, client in enumerate((7, 2)):
        inputs, labels = worker.samples(client, worker.partition.train_of(client))
        for k in range(3):
            worker.model.load(stack[k])
            with torch.no_grad():
                loss = cross_entropy(worker.model.module.eval()(inputs), labels)
            assert found[row, k] == pytest.approx(float(loss), rel=1e-5)


def test_cam_tests_the_sum_of_both_models(quick: Callable[..., Server]) -> None:
    import torch

    server = quick("ifca + cam", "method.clusters=2", "method.cam.warmup=0")
    record = server.run_round(1)
    fed, state = server.fed, server.method.state
    assert isinstance(fed, SerialFederation)
    worker = fed._worker
    for client in (0, 11):
        inputs, labels = worker.samples(client, worker.partition.test_of(client))
        logits = torch.zeros(len(labels), 10)
        for vector in (state.shared, state.centres[state.assignment[client]]):
            worker.model.load(vector)
            with torch.no_grad():
                logits = logits + worker.model.module.eval()(inputs)
        accuracy = float((logits.argmax(1) == labels).double().mean())
        assert record.clients["accuracy"][client] == pytest.approx(accuracy)


def test_fedper_averages_backbones_and_leaves_heads_with_their_clients(quick: Callable[..., Server]) -> None:
    server = quick("fedper")
    server.run_round(1)
    fed, clients = server.fed, np.arange(12)
    heads = fed.collect(clients, "head")
    assert len(np.unique(heads, axis=0)) == 12
    expected = np.average(fed.collect(clients, "backbone").astype(float), axis=0, weights=fed.n_train)
    np.testing.assert_allclose(server.method.state.backbone[fed.layout.backbone], expected, rtol=1e-4, atol=1e-6)
    model = fed.layout.size * 4
    head = (fed.layout.head.stop - fed.layout.head.start) * 4
    assert fed.ledger.bytes_down == 12 * (model - head)


def test_dittos_global_model_is_fedavgs_and_its_personal_one_is_pulled_to_it(quick: Callable[..., Server]) -> None:
    ditto, plain = quick("ditto", "method.lam=2.0"), quick("fedavg")
    free = quick("ditto", "method.lam=0.0")
    for number in (1, 2, 3):
        for server in (ditto, plain, free):
            server.run_round(number)
    assert np.array_equal(ditto.method.state.model, plain.method.state.model)

    def apart(server: Server) -> float:
        own = server.fed.collect(np.arange(12), slot="personal")
        return float(np.linalg.norm(own - server.method.state.model[: server.fed.layout.parameters], axis=1).mean())

    assert apart(ditto) < 0.9 * apart(free)


def test_the_soft_vote_is_the_mean_of_the_probabilities(quick: Callable[..., Server]) -> None:
    import torch

    server = quick("fedavg_ensemble", "method.clusters=3")
    record = server.run_round(1)
    fed = server.fed
    assert isinstance(fed, SerialFederation)
    worker = fed._worker
    inputs, labels = worker.samples(4, worker.partition.test_of(4))
    probabilities = torch.zeros(len(labels), 10)
    for vector in server.method.state.models:
        worker.model.load(vector)
        with torch.no_grad():
            probabilities += worker.model.module.eval()(inputs).softmax(1) / 3
    loss = -probabilities[torch.arange(len(labels)), labels].log().mean()
    assert record.clients["loss"][4] == pytest.approx(float(loss), rel=1e-4)


def test_fedsofts_centres_are_means_weighted_by_shares_of_least_loss(quick: Callable[..., Server]) -> None:
    server = quick("fedsoft", "method.clusters=3", "method.smoothing=0.01")
    fed, clients = server.fed, np.arange(12)
    fed.begin_round(1)
    shares = np.maximum(library.shares_of_least_loss(fed, clients, server.method.state.centres), 0.01)
    assert np.allclose(library.shares_of_least_loss(fed, clients, server.method.state.centres).sum(axis=1), 1)
    server.run_round(1)
    models = fed.collect(clients).astype(float)
    for k in range(3):
        expected = np.average(models, axis=0, weights=shares[:, k] * fed.n_train)
        found = server.method.state.centres[k, : fed.layout.parameters]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_sr_fcas_centre_is_the_trimmed_mean_of_its_clients_models(quick: Callable[..., Server]) -> None:
    server = quick("sr_fca", "method.beta=0.4", "method.refinements=1", "method.threshold=1000.0")
    for number in (1, 2, 3):
        server.run_round(number)
    fed, state = server.fed, server.method.state
    assert (state.assignment == 0).all()  # a threshold beyond all distances joins everyone
    ordered = np.sort(fed.collect(np.arange(12)), axis=0)[4:-4]
    np.testing.assert_allclose(state.centres[0, : fed.layout.parameters], ordered.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_sr_fca_with_a_threshold_below_all_distances_loses_nobody(quick: Callable[..., Server]) -> None:
    server = quick("sr_fca", "method.threshold=1e-9")
    for number in range(1, 9):
        server.run_round(number)
    assert (server.method.assignment() >= 0).all()


def test_fedtsdp_shares_fewer_layers_only_when_it_clusters(quick: Callable[..., Server]) -> None:
    never = quick("fedtsdp", "method.hopkins=0.999")
    always = quick("fedtsdp", "method.hopkins=0.001", "method.shrink=0.5")
    for number in (1, 2, 3):
        quiet, busy = never.run_round(number), always.run_round(number)
    assert (quiet.summary["clusters"], quiet.extras["shared_layers"], quiet.extras["clustered"]) == (1, 3, False)
    assert busy.extras["clustered"]
    assert busy.extras["shared_layers"] == 0.5  # 3 / 8, rounded up to a half
    state = always.method.state
    assert state.draw.sum() == pytest.approx(1)
    assert state.draw.max() > 2 * state.draw.min()  # the batches that told clients apart are drawn more often


def test_cks_pulls_clusters_together(quick: Callable[..., Server]) -> None:
    def apart(*overrides: str) -> float:
        server = quick("ifca", "method.clusters=3", *overrides)
        for number in range(1, 6):
            server.run_round(number)
        centres = server.method.state.centres[np.unique(server.method.assignment())]
        return float(np.square(centres - centres.mean(axis=0)).sum())

    assert apart("method.addons=[cks]", "method.cks.strength=1.0") < 0.9 * apart()


def test_fine_tuning_is_one_more_local_round_from_what_was_tested(quick: Callable[..., Server]) -> None:
    server = quick("fedavg + finetune", "rounds=1")
    record = server.run_round(1)
    plain = quick("fedavg", "rounds=1")
    assert plain.run_round(1).summary["accuracy"] == record.summary["accuracy"]
    assert "finetuned_accuracy" in record.extras
    moved = server.fed.collect(np.arange(12), slot="fine-tuned 0") - server.method.state.model
    assert (np.linalg.norm(moved, axis=1) > 0).all()


class Workers(Federation):
    """Several workers in this process, to look at who does what."""

    def __init__(self, p: Prepared, count: int) -> None:
        super().__init__(p.facts, count)
        self.workers = [Worker(p.config, p.dataset, p.partition) for _ in range(count)]
        self.loads: list[list[int]] = []
        self.moved = 0

    def _share(self, arrays: Any) -> Any:
        return arrays

    def _ask(self, operation: str, shares: Mapping[int, tuple[Any, ...]], shared: Any = None) -> dict[int, Any]:
        if operation == "train":
            self.loads.append([len(shares[w][0].clients) if w in shares else 0 for w in range(len(self.workers))])
        if operation == "adopt":
            self.moved += sum(len(states) for (states,) in shares.values())
        return {w: getattr(self.workers[w], operation)(shared, *arguments) for w, arguments in shares.items()}


@pytest.mark.parametrize("case", ["fedac", "ditto", "fedtsdp", "cgpfl + cks"])
def test_clients_that_keep_models_move_so_that_no_worker_waits_and_nothing_changes(case: str) -> None:
    """A third of the clients per round: their homes would leave one worker with twice the work of another."""
    p = prepared(case, "participation.fraction=0.3", "partition.clients=20", "rounds=12")
    alone = serial(p)
    spread = Workers(p, 3)
    try:
        expected, found = run(p, alone)[1], run(p, spread)[1]
    finally:
        alone.close()
    assert all(max(load) - min(load) <= 1 for load in spread.loads), spread.loads
    assert spread.moved > 0
    for one, other in zip(expected, found, strict=True):
        left, right = bits(one), bits(other)
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {one.number}")


@pytest.mark.parametrize("case", CASES)
def test_every_method_goes_on_from_a_checkpoint_to_the_same_bits_on_another_number_of_workers(
    case: str, tmp_path: Path
) -> None:
    """After round 3 and again after 5: once inside every phase, with clients that have and have not taken part."""
    p, _, expected = with_a_third_per_round(case)
    storage = Storage(tmp_path)
    server = Server(p.config, Workers(p, 2), p.partition.true_cluster)
    for number in range(1, 6):
        server.run_round(number)
        if number in (3, 5):
            Checkpoints(storage, p.config, p, found=found_in(storage, p)).write(server)
    server = Server(p.config, Workers(p, 3), p.partition.true_cluster)
    checkpoints = Checkpoints(storage, p.config, p, found=found_in(storage, p))
    checkpoints.bring_back(server)
    found = [server.run_round(number) for number in range(checkpoints.round + 1, p.config.rounds + 1)]
    assert len(found) == 5
    for one, other in zip(expected[5:], found, strict=True):
        left, right = bits(one), bits(other)
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {one.number}")


# Clusters are there when newcomers come in round 3.
EARLY = {
    "local_kmeans": ["method.warmup=1"],
    "flhc": ["method.warmup=1"],
    "oneshot_ifca": ["method.one_shot_rounds=1"],
    "sr_fca": ["method.one_shot_rounds=1"],
    "ifca + cam": ["method.cam.warmup=1"],
    "fesem + cam": ["method.cam.warmup=1"],
    "ifca + cam + finetune": ["method.cam.warmup=1"],
    "fedtsdp + finetune": ["method.shared_layers=1.5"],
}


@pytest.mark.parametrize("case", CASES)
def test_every_method_takes_newcomers_in_with_the_same_bits_on_any_number_of_workers(case: str) -> None:
    """However long newcomers are fine-tuned: on two workers by one round less."""
    words = ["model.name=mlp", "arrive.count=4", "arrive.round=3", "rounds=4", "participation.fraction=0.6"]
    words += [*EARLY.get(CASES[case][0], []), *EARLY.get(case, [])]
    p, less = (prepared(case, *words, f"arrive.tune={tune}") for tune in ("[0, 1, 2]", "[0, 1]"))
    alone = serial(p)
    try:
        expected, found = run(p, alone)[1], run(less, Workers(less, 2))[1]
    finally:
        alone.close()
    for one, other in zip(expected, found, strict=True):
        left, right = bits(one), bits(other)
        assert left.keys() - right.keys() == ({"extras.newcomers_accuracy_2"} if one.number == 3 else set())
        for key in right:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {one.number}")
        assert (one.newcomers is not None) == (one.number == 3)
    rows, fewer = expected[2].newcomers, found[2].newcomers
    assert rows is not None
    assert fewer is not None
    assert rows["tuned"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for key, column in fewer.items():
        np.testing.assert_array_equal(column, rows[key][:8], err_msg=key)
    assert rows["loss"][8:].mean() < rows["loss"][:4].mean()  # after two rounds on their own data
    if "cluster" in rows:
        assert (rows["cluster"] >= 0).all()
    late = np.unique(rows["client"])
    for record in expected[:2]:
        assert not np.isin(record.clients["client"], late).any()
    assert np.isin(late, expected[3].clients["client"]).all()


def found_in(storage: Storage, p: Prepared) -> Checkpoints:
    checkpoints = Checkpoints(storage, p.config)
    checkpoints.find()
    return checkpoints


def test_a_budget_of_nothing_changes_no_bit() -> None:
    """Every kept model then lies in a mapped file."""
    records = []
    for budget in (2048, 0):
        p = prepared("fedac", f"state.memory_mb={budget}")
        fed = serial(p)
        try:
            records.append(run(p, fed)[1])
        finally:
            fed.close()
    for one, other in zip(*records, strict=True):
        assert bits(one).keys() == bits(other).keys()
        for key, value in bits(one).items():
            np.testing.assert_array_equal(value, bits(other)[key])


@pytest.mark.slow
def test_fedtsdp_clusters_and_shares_fewer_layers_only_where_clients_differ() -> None:
    """The setting of its section 4.1 on the digits: never on IID data (Figure 10), most rounds on Dirichlet 0.2."""
    setting = ["data.limit=1797", "partition.clients=20", "evaluate.every=25", "rounds=25", "local.momentum=0.5"]
    setting += ["local.steps=null", "local.epochs=2", "local.batch_size=50", "local.lr=0.05", "local.lr_decay=0.95"]
    defaults = ["method.hopkins=0.65", "method.public_batch=50", "method.shrink=0.98"]
    shared_layers, clustered = {}, {}
    for kind, options in {"iid": [], "dirichlet": ["partition.alpha=0.2"]}.items():
        p = prepared("fedtsdp", *setting, *defaults, f"partition.kind={kind}", *options, "seed=0")
        fed = serial(p)
        try:
            _, records = run(p, fed)
        finally:
            fed.close()
        clustered[kind] = sum(r.extras["clustered"] for r in records)
        shared_layers[kind] = [r.extras["shared_layers"] for r in records]
    assert clustered["iid"] == 0
    assert set(shared_layers["iid"]) == {3}
    assert clustered["dirichlet"] > 15
    assert shared_layers["dirichlet"][-1] == ceil(2 * 3 * 0.98 ** clustered["dirichlet"]) / 2 < 3


@pytest.mark.parametrize("case", ["fedavg", "fedac", "ifca + cam", "wecfl + con_cks + finetune"])
def test_training_together_gives_the_same_bits_on_any_number_of_workers_and_nearly_the_loops(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is trained beside a client leaves no trace in its model."""
    last, calls = {}, []
    monkeypatch.setattr(worker, "train_together", lambda *a: calls.append(len(a[1])) or train_together(*a))
    for training in ("vectorised", "loop"):
        calls.clear()
        p = prepared(case, f"training={training}", "participation.fraction=0.6", "rounds=6")
        alone, spread = serial(p), Workers(p, 3)
        try:
            expected, found = run(p, alone)[1], run(p, spread)[1]
        finally:
            alone.close()
        for one, other in zip(expected, found, strict=True):
            left, right = bits(one), bits(other)
            for key in left:
                np.testing.assert_array_equal(left[key], right[key], err_msg=f"{key} in round {one.number}")
        last[training] = expected[-1].clients["loss"]
        assert len(set(calls)) > 1 if training == "vectorised" else not calls  # groups of several sizes
    np.testing.assert_allclose(last["vectorised"], last["loop"], rtol=1e-2)


def test_tiny_networks_and_batches_of_one_sample_give_the_same_bits_on_any_number_of_workers() -> None:
    """Sums of so few numbers depend on their order for some seeds and not for others; this one was found to fail."""
    words = ["seed=5", "rounds=4", "local.steps=30", "method.name=local", "model.options.channels=1"]
    words += ["local.batch_size=1", "partition.kind=iid", "partition.clients=6", "federation=serial"]
    p = prepare(load_config(None, [*words, "training=vectorised"]))
    alone = serial(p)
    try:
        expected = run(p, alone)[1]
        for workers in (2, 5):
            found = run(p, Workers(p, workers))[1]
            for one, other in zip(expected, found, strict=True):
                np.testing.assert_array_equal(one.clients["loss"], other.clients["loss"])
    finally:
        alone.close()
