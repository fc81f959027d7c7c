"""Both federations give the same bits, for any number of actors, and move only what they should."""

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import finished
from tables import assert_same

from rayfl.client.orders import MapOrder
from rayfl.clustering import LowRankMap
from rayfl.config import load_config
from rayfl.errors import ClientError, DivergedError, InputError
from rayfl.federation import FeatureContrast, Models, ParameterContrast, Proximal, Sent, everyone
from rayfl.federation.serial import SerialFederation
from rayfl.federation.traffic import FLOAT_BYTES
from rayfl.methods.fedac import project_models
from rayfl.results import Run
from rayfl.simulation.preparation import prepare
from rayfl.simulation.server import Server

SMALL = ["rounds=12", "local.steps=3", "local.lr=0.1"]


@pytest.fixture
def federation(serial_server: Callable[..., Server]) -> Callable[..., SerialFederation]:
    """An in-process federation in its first round."""

    def make(*overrides: str) -> SerialFederation:
        fed = serial_server("local.steps=2", *overrides).fed
        assert isinstance(fed, SerialFederation)
        fed.begin_round(1)
        return fed

    return make


@pytest.mark.parametrize("participation", ["1.0", "0.25"])
@pytest.mark.parametrize("method", ["fedavg", "fedac"])
def test_serial_and_one_two_three_actors_give_the_same_tables(
    simulate_quietly: Callable[..., Run], ray_session: None, method: str, participation: str
) -> None:
    common = [*SMALL, f"method.name={method}", f"participation.fraction={participation}"]
    common += ["method.tune_from=2"] if method == "fedac" else []  # so that tuning is part of it
    reference = simulate_quietly(*common, "federation=serial")
    assert len(reference.rounds) == 12
    # Starting actors takes seconds: the most demanding case tries all numbers of actors, the others only the largest.
    for actors in (1, 2, 3) if (method, participation) == ("fedac", "0.25") else (3,):
        assert_same(reference, simulate_quietly(*common, f"ray.actors={actors}"))


def test_batch_norm_and_dropout_give_the_same_bits_too(
    simulate_quietly: Callable[..., Run], ray_session: None, bn_module: str
) -> None:
    common = ["rounds=3", "local.steps=2", "method.name=fedavg", f"model.name={bn_module}"]
    assert_same(simulate_quietly(*common, "federation=serial"), simulate_quietly(*common, "ray.actors=3"))


def test_the_same_seed_gives_the_same_tables_and_another_seed_others(
    simulate_quietly: Callable[..., Run],
) -> None:
    common = ["rounds=2", "local.steps=2", "federation=serial", "method.name=fedavg"]
    first = simulate_quietly(*common)
    assert_same(first, simulate_quietly(*common))
    assert not simulate_quietly(*common, "seed=1").rounds["loss"].equals(first.rounds["loss"])


def test_a_run_leaves_torchs_random_state_and_threads_alone(simulate_quietly: Callable[..., Run]) -> None:
    import torch

    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    simulate_quietly("rounds=1", "local.steps=1", "federation=serial", "method.name=fedavg")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_mean_is_weighted_by_what_it_is_told(federation: Callable[..., SerialFederation]) -> None:
    fed = federation()
    cohort = np.array([2, 5, 11])
    fed.train(cohort)
    vectors = fed.collect(cohort)
    weights = np.array([1, 2, 5])
    expected = np.average(vectors.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(fed.mean(cohort, weights), expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(fed.mean(cohort), vectors.mean(0), rtol=1e-5, atol=1e-7)


def test_the_mean_of_a_part_has_only_that_part(federation: Callable[..., SerialFederation]) -> None:
    fed = federation()
    cohort = np.arange(3)
    fed.train(cohort)
    whole, part = fed.mean(cohort), fed.mean(cohort, part="backbone")
    assert np.array_equal(part[fed.layout.backbone], whole[fed.layout.backbone])
    assert not part[fed.layout.head].any()


def test_kept_sums_follow_who_trained_and_who_moved(federation: Callable[..., SerialFederation]) -> None:
    """The corrected sums equal sums made from nothing, after training, moving, and a cluster's end."""
    fed = federation()
    rng = np.random.default_rng(0)
    fed.train(np.arange(20), keep=True)
    for number, clusters in enumerate([[0, 1, 2], [0, 1, 2], [1, 7]], start=2):
        fed.begin_round(number)
        fed.train(rng.choice(20, 6, replace=False), keep=True)
        assignment = rng.choice(clusters, 20)
        assignment[number] = -1
        means = fed.mean_of_kept(assignment, np.array(clusters))
        for row, cluster in enumerate(clusters):
            members = np.flatnonzero(assignment == cluster)
            assert np.array_equal(means[row], fed.mean(members)), (number, cluster)


def test_a_client_starts_from_what_it_kept_with_the_given_part_laid_over(
    federation: Callable[..., SerialFederation],
) -> None:
    fed = federation("local.lr=1e-12")  # training that leaves the start as it is
    mine = np.full(fed.layout.size, 0.5, np.float32)
    theirs = np.full(fed.layout.size, -0.25, np.float32)
    fed.train(np.array([3]), start=everyone(mine, fed.clients), keep=True)
    fed.train(np.array([3]), start=everyone(theirs, fed.clients, "backbone"), keep=True)
    (vector,) = fed.collect(np.array([3]))
    np.testing.assert_allclose(vector[fed.layout.backbone], -0.25, rtol=1e-5)
    np.testing.assert_allclose(vector[fed.layout.head], 0.5, rtol=1e-5)


def test_a_client_that_keeps_nothing_starts_from_the_initial_model(federation: Callable[..., SerialFederation]) -> None:
    fed = federation("local.lr=1e-12")
    fed.train(np.array([3]), start=everyone(np.ones(fed.layout.size, np.float32), fed.clients))
    fed.train(np.array([3]))
    np.testing.assert_allclose(fed.collect(np.array([3]))[0], fed.initial[: fed.layout.parameters], atol=1e-6)


def test_a_pull_reaches_only_those_it_is_handed_to(federation: Callable[..., SerialFederation]) -> None:
    target = np.zeros(federation().layout.size, np.float32)
    choice = np.full(20, -1)
    choice[4] = 0
    plain, pulled = federation(), federation()
    plain.train(np.array([4, 5]))
    pulled.train(np.array([4, 5]), objective=[Proximal(Models(target[None], choice), 1.0)])
    a, b = plain.collect(np.array([4, 5])), pulled.collect(np.array([4, 5]))
    assert not np.array_equal(a[0], b[0])
    assert np.linalg.norm(b[0]) < np.linalg.norm(a[0])
    assert np.array_equal(a[1], b[1])


def test_bytes_are_what_a_deployment_would_send(federation: Callable[..., SerialFederation]) -> None:
    fed = federation()
    model, everyones = fed.initial, fed.layout.size * FLOAT_BYTES
    cohort = np.arange(5)
    handed = everyone(model, fed.clients)
    fed.train(cohort, start=handed, objective=[Proximal(handed, 0.1)], keep=True)  # one model, though it is used twice
    assert fed.ledger.bytes_down == 5 * everyones
    fed.mean(cohort, part="backbone")
    fed.mean(cohort)  # the server already has the backbones: only the heads are sent
    assert fed.ledger.bytes_up == 5 * everyones
    dim = fed.layout.parameters
    fed.begin_round(2)
    low_rank = LowRankMap(np.zeros(dim, np.float32), np.eye(3, dim, dtype=np.float32))
    size = low_rank.components.size * FLOAT_BYTES
    fed.map(cohort, project_models, Sent(low_rank, size, new=5), together=True)
    fed.map(cohort, project_models, Sent(low_rank, size, new=0), together=True)
    assert fed.ledger.bytes_down == 5 * 3 * dim * FLOAT_BYTES  # the map travels once
    assert fed.ledger.bytes_up == 2 * 5 * (3 + 1) * 8


def test_only_kept_models_are_there_in_the_next_round(federation: Callable[..., SerialFederation]) -> None:
    """Others would be missing after a recovery, and the round would be another one."""
    fed = federation()
    fed.train(np.arange(4), keep=True)
    fed.train(np.arange(3, 6), slot="other")
    assert fed.has_model(np.arange(6)).tolist() == [True] * 4 + [False] * 2
    assert fed.has_model(np.arange(6), "other").sum() == 3
    fed.begin_round(2)
    assert fed.has_model(np.arange(6)).sum() == 4
    assert not fed.has_model(np.arange(6), "other").any()


def test_a_broadcast_is_unchanged_after_a_round(ray_session: None) -> None:
    """torch.from_numpy on a fetched array would let an in-place step change it for every later reader."""
    import ray

    from rayfl.actors.client_actor import HEALTH, ClientActor
    from rayfl.client.orders import EvaluateOrder, HandedRows, TrainOrder
    from rayfl.federation import library

    prepared = prepare(load_config(None, ["local.steps=2"]))
    stack = prepared.facts.initial[None].copy()
    decorate: Any = ray.remote
    actor = decorate(concurrency_groups={HEALTH: 1})(ClientActor).options(num_cpus=1).remote([])
    actor.open.remote(1, prepared.config, ray.put(prepared.dataset), ray.put(prepared.partition))
    shared = ray.put([stack, stack])
    clients = np.arange(4)
    choice = np.zeros(4, int)
    both = [HandedRows(0, choice), HandedRows(1, choice)]
    terms: list = [Proximal(None, 0.5), ParameterContrast(None, 0.5, 1.0), FeatureContrast(None, 0.5, 1.0)]
    order = TrainOrder(1, clients, start=both[0], terms=[(term, both[1]) for term in terms], partner=both[1])
    ray.get(actor.call.remote(1, "train", shared, order), timeout=120)
    asked = MapOrder(1, clients, 0, library._losses, [None, choice])
    ray.get(actor.call.remote(1, "map", shared, asked), timeout=120)
    tasks: list = [((0, 0), clients)]
    ray.get(actor.call.remote(1, "evaluate", shared, EvaluateOrder(tasks, "logits", ("all", "all"))), timeout=120)
    for array in ray.get(shared):
        assert np.array_equal(array, stack)
    ray.kill(actor)


def test_what_leaves_an_actor_is_one_sum_per_cluster_and_d_numbers_per_client(
    federation: Callable[..., SerialFederation],
) -> None:
    """Not one model per client: checked on the worker's very answers."""
    import pickle

    fed = federation()
    cohort = np.arange(20)
    fed.train(cohort, keep=True)
    worker = fed._worker
    assignment = cohort % 2
    sums = len(pickle.dumps(worker.kept_sums(None, "model", cohort, assignment, 36)))
    assert sums < 2 * fed.layout.size * 8 + 2_000
    low_rank = LowRankMap(
        np.zeros(fed.layout.parameters, np.float32), np.eye(5, fed.layout.parameters, dtype=np.float32)
    )
    order = MapOrder(1, cohort, 0, project_models, [None], together=True)
    sketches = np.concatenate([np.append(*result) for result in worker.map([low_rank], order)[0]])
    assert len(pickle.dumps(sketches)) < 20 * (5 + 1) * 8 + 2_000


def test_a_failing_client_is_named_with_its_round_and_traceback(
    simulate_quietly: Callable[..., Run], ray_session: None, failing_module: str
) -> None:
    for federation_kind in ("serial", "ray"):
        with pytest.raises(ClientError, match=r"client \d+ failed in round 1:\nTraceback(.|\n)*the cat ate it"):
            simulate_quietly(
                "rounds=2",
                "method.name=fedavg",
                f"model.name={failing_module}",
                f"federation={federation_kind}",
            )


def test_diverging_training_is_told_with_the_cure(simulate_quietly: Callable[..., Run]) -> None:
    with pytest.raises(DivergedError, match=r"lower local\.lr"):
        simulate_quietly("rounds=5", "federation=serial", "method.name=fedavg", "local.lr=1e6")


class TestPlacement:
    """Logical GPUs: two of them, as the session's Ray counts."""

    def seats(self, *overrides: str) -> list[Any]:
        from rayfl.actors.supervisor import ray_server

        p = prepare(load_config(None, ["method.name=fedavg", *overrides]))
        with ray_server(p.config, lambda: p) as server:
            return list(server.seats)

    def test_actors_are_pinned_to_their_share_of_a_gpu(self, own_actors: None) -> None:
        seats = self.seats("ray.actors_per_gpu=2", "ray.cpus_per_actor=0.5")
        assert sorted(s.gpus[0] for s in seats) == [0, 0, 1, 1]
        assert {s.device for s in seats} == {"cpu"}  # Ray counts GPUs that this machine does not have

    def test_without_a_gpu_share_nobody_sits_on_one(self, own_actors: None) -> None:
        seats = self.seats("ray.actors=2")
        assert [s.gpus for s in seats] == [[], []]
        assert len({s.pid for s in seats}) == 2

    @pytest.mark.parametrize(
        ("overrides", "told"),
        [
            (["ray.actors=5"], r"ray\.actors=5 do not fit.*4 fit.*ray\.actors=4"),
            (["ray.actors=9", "ray.actors_per_gpu=4", "ray.cpus_per_actor=0"], r"ray\.actors=9.*8 fit"),
            (["ray.gpus_per_actor=3"], r"no client actor fits.*3 GPUs.*raise ray\.actors_per_gpu"),
            (["ray.cpus_per_actor=64"], r"no client actor fits.*lower ray\.cpus_per_actor"),
        ],
    )
    def test_what_can_never_fit_is_refused_with_the_cure(
        self, own_actors: None, overrides: list[str], told: str
    ) -> None:
        with pytest.raises(InputError, match=told):
            self.seats(*overrides)

    def test_what_does_not_fit_now_is_told_after_the_timeout(self, own_actors: None) -> None:
        import ray

        @ray.remote(num_cpus=3)
        class Hog:
            def ready(self) -> None: ...

        hog = Hog.remote()
        ray.get(hog.ready.remote(), timeout=60)
        try:
            with pytest.raises(InputError, match=r"of 4 client actors did not start within ray\.start_timeout=3 "):
                self.seats("ray.actors=4", "ray.start_timeout=3")
        finally:
            ray.kill(hog)

    def test_more_actors_than_clients_are_not_started(self, own_actors: None) -> None:
        seats = self.seats("partition.clients=4", "partition.samples=[20,20]", "ray.cpus_per_actor=0.5")
        assert len(seats) == 4


def test_actors_read_the_data_set_where_it_lies_in_shared_memory(own_actors: None) -> None:
    """A copy would be writeable; what the object store maps into an actor is not."""
    import ray

    @ray.remote(num_cpus=0)
    def look(dataset: Any, partition: Any) -> list[bool]:
        return [a.flags.writeable for a in (dataset.inputs, dataset.labels, partition.train, partition.test)]

    p = prepare(load_config(None, ["partition.clients=800", "participation.count=2"]))
    assert ray.get(look.remote(ray.put(p.dataset), ray.put(p.partition)), timeout=120) == [False] * 4


def test_another_process_uses_the_ray_that_ray_address_names_and_leaves_it_running(
    own_actors: None, tmp_path: Path
) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    words = ["run", "rounds=1", "local.steps=1", "method.name=fedavg", "ray.actors=1", "ray.cpus_per_actor=3"]
    done = finished(["-m", "rayfl.cli", *words], 200, cwd=tmp_path, env=os.environ | {"RAY_ADDRESS": address})
    # Three CPUs for one actor fit only on the session's Ray, which counts four.
    assert done.returncode == 0, done.stderr
    assert ray.get(ray.put("still here"), timeout=60) == "still here"


def test_a_ray_that_was_not_ours_stays_up(simulate_quietly: Callable[..., Run], own_actors: None) -> None:
    import ray

    simulate_quietly("rounds=1", "local.steps=1", "method.name=fedavg", "ray.actors=1")
    assert ray.is_initialized()

    @ray.remote(num_cpus=4)
    def all_cpus() -> bool:
        return True

    assert ray.get(all_cpus.remote(), timeout=60)  # and its actors are gone


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")
def test_memory_that_workers_free_does_not_come_back_as_new_pages() -> None:
    """In a separate process, like a worker, because this cannot be undone."""
    program = textwrap.dedent("""
        import resource
        import torch
        from rayfl.client.allocator import keep_freed_memory

        def page_faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(20):
                maps = [torch.ones(2**22) for _ in range(3)]  # 16 MB each
                del maps
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        before = page_faults()
        keep_freed_memory()
        page_faults()
        print(before, page_faults())
    """)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, answer.stdout.split())
    assert after < before / 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")
def test_free_memory_between_what_is_kept_can_be_given_back() -> None:
    """The driver and the server do this after a recovery; tested in a separate process, whose memory is known."""
    program = textwrap.dedent("""
        from pathlib import Path
        from rayfl.client.allocator import return_freed_memory

        def megabytes():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) / 1024

        pieces = [bytes(40_000) for _ in range(5000)]  # 200 MB
        kept = pieces[::100] + pieces[-1:]
        before = megabytes()
        del pieces
        freed = megabytes()
        return_freed_memory()
        print(before - freed, before - megabytes())
    """)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    by_itself, given_back = map(float, answer.stdout.split())
    assert by_itself < 50
    assert given_back > 150
