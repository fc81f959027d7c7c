"""Partitions whose clients change cluster: what is true in which round, and what clients see of their samples then."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

import rayfl
from rayfl.analysis.views import label_distribution
from rayfl.client.client import Client
from rayfl.client.orders import EvaluateOrder
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.data import Change, Partition
from rayfl.results import Run
from rayfl.simulation.preparation import Prepared, prepare


def prepared(*overrides: str) -> Prepared:
    return prepare(load_config(None, ["partition.clients=8", "model.name=mlp", "federation=serial", *overrides]))


def changing(partition: Partition) -> Partition:
    """Clients 0 and 1, of cluster 0, go to 2 in round 3, and 0 comes back in round 5."""
    first = Change(3, np.array([0, 1]), np.array([2, 2]), np.array([2, 2]))
    return replace(partition, changes=(first, Change(5, np.array([0]), np.array([0]), np.array([0]))))


def test_the_planted_clusters_of_a_round_are_those_of_the_last_change() -> None:
    partition = changing(prepared().partition)
    assert partition.true_cluster is not None
    assert partition.true_cluster_at(2) is partition.true_cluster
    clusters = {number: partition.true_cluster_at(number) for number in (0, 2, 3, 4, 5, 90)}
    assert {number: found[:3].tolist() for number, found in clusters.items() if found is not None} == {
        0: [0, 0, 1],
        2: [0, 0, 1],
        3: [2, 2, 1],
        4: [2, 2, 1],
        5: [0, 2, 1],
        90: [0, 2, 1],
    }
    assert partition.true_cluster.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_client_sees_its_samples_as_its_cluster_of_the_round_does() -> None:
    partition = changing(prepared().partition)
    for client in range(8):
        for number in range(7):
            of = partition.transform_of_at(number)
            assert of is not None
            assert partition.transform_for(client, number) is partition.transforms[of[client]]
    assert [partition.transform_for(0, number).turns for number in (0, 2, 3, 4, 5)] == [0, 0, 2, 2, 0]  # type: ignore[union-attr]


def test_workers_make_samples_by_the_round_of_the_order() -> None:
    made = prepared()
    worker = Worker(made.config, made.dataset, changing(made.partition))
    plain, labels = Client(worker, 0, 2, 0).samples()
    turned, same = Client(worker, 0, 3, 0).samples()
    assert torch.equal(turned, torch.rot90(plain, 2, dims=(2, 3)))
    assert torch.equal(labels, same)
    tasks = [((-1,), np.array([0]))]
    scores = [worker.evaluate([None], EvaluateOrder(tasks, "logits", ("all",), round=n))[1] for n in (2, 3, 5)]
    assert (scores[0] == scores[2]).all()
    assert (scores[0] != scores[1]).any()
    before = Worker(made.config, made.dataset, made.partition)
    here, there = (torch.cat([x for x, _ in at._batches(0, (3, 0))]) for at in (worker, before))
    assert torch.equal(here, torch.rot90(there, 2, dims=(2, 3)))


def test_changes_are_part_of_the_fingerprint_and_none_leaves_it_as_it_was() -> None:
    made = prepared()
    before = made.fingerprints.partition
    assert replace(made, partition=replace(made.partition, changes=())).fingerprints.partition == before
    after = replace(made, partition=changing(made.partition)).fingerprints.partition
    assert after != before


DRIFTING = (
    "partition={kind: composed, clients: 8, features: [{kind: rotation, angle: [0, 15, 180]},"
    " {kind: noise, std: [0, 40], by: client}], drift: [{round: 2, share: 0.5}, {every: 2, clusters: [1], times: 3}]}",
    *("model.name=mlp", "local.steps=3", "method.name=ifca", "method.clusters=3", "rounds=5", "ray.actors=2"),
)


def tables(run: Run) -> list[pd.DataFrame]:
    return [
        frame.drop(columns=["run", "extras", *frame.filter(regex="^seconds").columns], errors="ignore")
        for frame in (run.rounds, run.clients)
    ]


def test_drifting_clients_give_the_same_tables_on_two_actors_and_after_a_resume(
    simulate_quietly: Callable[..., Run], ray_session: None
) -> None:
    one = simulate_quietly(*DRIFTING, "federation=serial", "name=one")
    two = simulate_quietly(*DRIFTING, "federation=ray", "name=two")
    short = simulate_quietly(*DRIFTING, "federation=serial", "name=short", "rounds=3", "output.checkpoint_every=1")
    longer = rayfl.resume(short.path, quiet=True, rounds=5)
    for other in (two, longer):
        for left, right in zip(tables(one), tables(other), strict=True):
            pd.testing.assert_frame_equal(left, right)


RECURRING = (
    "partition={kind: composed, clients: 4, concept: [{kind: swap, pairs: [[], [[0, 1]]]}], drift: [EVENT]}",
    *("model.name=mlp", "local.steps=1", "method.name=fedavg", "federation=serial", "data.limit=100"),
)


def recurring(event: str, *more: str) -> tuple[str, ...]:
    return RECURRING[0].replace("EVENT", event), *RECURRING[1:], *more


def test_a_drift_that_recurs_goes_on_as_long_as_the_run() -> None:
    partition = prepare(load_config(None, recurring("{every: 2, round: 3}", "rounds=407"))).partition
    assert partition.true_cluster is not None
    for number in (2, 3, 4, 5, 199, 201, 202, 203, 405, 406, 407):
        turns = max(0, (number - 1) // 2)
        expected = partition.true_cluster if turns % 2 == 0 else 1 - partition.true_cluster
        found = partition.true_cluster_at(number)
        assert found is not None and found.tolist() == expected.tolist()


def test_a_drift_with_a_number_of_times_ends_after_them() -> None:
    partition = prepare(load_config(None, recurring("{every: 1, times: 3}", "rounds=300"))).partition
    assert [change.round for change in partition.changes] == [1, 2, 3]


def test_a_run_of_few_rounds_has_the_partition_that_it_always_had() -> None:
    """Its fingerprint is of a hundred changes, as when that was the default."""
    open_end, given = (
        prepare(load_config(None, recurring(event, "rounds=50"))) for event in ("{every: 1}", "{every: 1, times: 100}")
    )
    assert open_end.fingerprints == given.fingerprints
    assert len(open_end.partition.changes) == 100


def test_a_run_with_recurring_drift_can_be_continued_for_any_number_of_rounds(
    simulate_quietly: Callable[..., Run],
) -> None:
    words = recurring("{every: 1}", "evaluate.every=35", "output.models=none")
    whole = simulate_quietly(*words, "rounds=105", "name=whole")
    short = simulate_quietly(*words, "rounds=70", "name=short", "output.checkpoint_every=70")
    longer = rayfl.resume(short.path, quiet=True, rounds=105)
    assert whole.fingerprints == short.fingerprints
    for left, right in zip(tables(whole), tables(longer), strict=True):
        pd.testing.assert_frame_equal(left, right)
    before, after = (label_distribution(longer, round=number) for number in (104, 105))
    assert before[0].tolist() == after[1].tolist() != after[0].tolist()


def test_a_saved_model_sees_raw_samples_as_its_client_saw_them_at_the_end(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*DRIFTING, "federation=serial", "name=one")
    made = prepare(run.config)
    for client in range(8):
        samples = np.arange(20)
        raw = made.dataset.inputs[samples]
        transform = made.partition.transform_for(client, 5)
        assert transform is not None
        expected, _ = made.dataset.batch(samples, transform)
        assert torch.equal(run.model(client=client).prepare(raw), expected)
