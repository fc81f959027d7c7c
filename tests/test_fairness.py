"""What makes methods comparable: one partition and one initial model per seed, and fingerprints that tell."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from tables import assert_same

import rayfl
from rayfl.config import load_config
from rayfl.config.listing import listed
from rayfl.data.dataset import Transform
from rayfl.errors import InputError
from rayfl.results import Fingerprints, Run, RunWriter, Storage
from rayfl.simulation.manifest import check_of
from rayfl.simulation.preparation import Prepared, prepare
from rayfl.simulation.server import Server

SMALL = ["federation=serial", "model.name=mlp", "partition.clients=8", "local.steps=1", "rounds=2"]


def prepared(*keys: str) -> Prepared:
    return prepare(load_config(None, [*SMALL, *keys]))


# --- partition.seed -------------------------------------------------------------------------------------------------


def test_partition_seed_moves_the_partition_and_leaves_the_initial_model() -> None:
    plain, other, same = (prepared(f"partition.seed={seed}") for seed in (0, 5, 0))
    assert plain.fingerprints == same.fingerprints
    assert plain.fingerprints.differing(other.fingerprints) == ["partition"]


def test_seed_moves_the_initial_model_and_with_partition_seed_only_that() -> None:
    one, two = prepared("seed=1", "partition.seed=3"), prepared("seed=2", "partition.seed=3")
    assert one.fingerprints.differing(two.fingerprints) == ["model"]
    assert prepared("seed=1").fingerprints.differing(prepared("seed=2").fingerprints) == ["partition", "model"]


def test_without_partition_seed_the_runs_seed_deals_as_before() -> None:
    assert prepared("seed=4").fingerprints == prepared("seed=4", "partition.seed=4").fingerprints
    assert "seed" not in prepared("seed=4").config.to_tree()["partition"]


def test_partition_seed_draws_the_samples_of_data_limit() -> None:
    one, two = prepared("data.limit=300", "partition.seed=1"), prepared("data.limit=300", "partition.seed=2")
    assert not np.array_equal(one.dataset.labels, two.dataset.labels)
    again = prepared("data.limit=300", "partition.seed=1", "seed=9")
    assert np.array_equal(one.dataset.labels, again.dataset.labels)


def test_partition_seed_is_listed_with_the_keys_of_the_config() -> None:
    (key,) = [key for key in listed() if key.name == "partition.seed"]
    assert not key.only and "default: the run's seed" in key.meaning


def test_a_bad_partition_seed_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^partition\.seed=-1"):
        load_config(None, ["partition.seed=-1"])


# --- one start for all methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["transforms", "dirichlet"])
def test_methods_with_the_same_seed_share_one_partition_and_one_initial_model(partition: str) -> None:
    methods = ["local", "fedavg", "fedac", "ifca", "fesem", "fedper", "sr_fca", "ditto"]
    kinds = [f"partition.kind={partition}", "seed=3"]
    starts = {prepared(*kinds, f"method.name={method}").fingerprints for method in methods}
    assert len(starts) == 1


def test_the_shared_model_and_the_first_cluster_begin_as_the_initial_model(
    serial_server: Callable[..., Server],
) -> None:
    initial = prepared("seed=3").facts.initial
    for method in ("fedavg", "fedprox", "fedper", "ifca", "fedac"):
        server = serial_server("model.name=mlp", "partition.clients=8", "seed=3", f"method.name={method}")
        models = [value for value in vars(server.method.state).values() if isinstance(value, np.ndarray)]
        rows = [row for value in models if value.shape[-1:] == initial.shape for row in np.atleast_2d(value)]
        assert np.array_equal(rows[0], initial), method


# --- fingerprints ---------------------------------------------------------------------------------------------------


def test_fingerprints_know_planted_clusters_and_transforms() -> None:
    ready = prepared()
    parts = ready.partition
    assert parts.true_cluster is not None
    turned = (*parts.transforms[:-1], Transform(degrees=12.5))
    for other in (
        replace(parts, transforms=turned),
        replace(parts, true_cluster=parts.true_cluster[::-1]),
        replace(parts, true_cluster=None),
        replace(parts, test=parts.test[::-1]),
    ):
        assert ready.fingerprints.differing(replace(ready, partition=other).fingerprints) == ["partition"]
    # Quarter turns and inversions deal the same samples to the same clients: only the transforms differ.
    one, two = prepared("partition.clusters=2"), prepared("partition.transform=inversion")
    assert one.dealt_fingerprint == two.dealt_fingerprint
    assert one.fingerprints.differing(two.fingerprints) == ["partition"]


def test_fingerprints_know_other_data() -> None:
    ready = prepared()
    flipped = replace(ready.dataset, labels=ready.dataset.labels[::-1].copy())
    assert ready.fingerprints.differing(replace(ready, dataset=flipped).fingerprints) == ["data"]


def test_a_run_records_its_fingerprints_and_they_outlive_checkpoints(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*SMALL, "method.name=fedavg", "output.checkpoint_every=0", "name=mine")
    assert not (Path(run.path) / "checkpoints").exists()
    assert rayfl.load(run.path).fingerprints == prepared("method.name=fedavg").fingerprints


def test_a_run_without_fingerprints_still_loads(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("rounds: 1\n")
    with RunWriter(Storage(tmp_path), "old", "fedac", 0) as writer:
        writer.write_round(1, {"accuracy": 0.5}, {"client": [0]})
    run = rayfl.load(tmp_path)
    assert run.fingerprints is None and run.finished


@pytest.mark.parametrize("note", ["{}", "[1]", "not json", '{"data": 1, "partition": "a", "model": "b"}'])
def test_a_damaged_note_counts_as_none(tmp_path: Path, note: str) -> None:
    (tmp_path / "config.yaml").write_text("rounds: 1\n")
    RunWriter(Storage(tmp_path), "odd", "fedac", 0, notes={b"rayfl_fingerprints": note})
    assert rayfl.load(tmp_path).fingerprints is None


def test_a_resumed_run_keeps_its_fingerprints_and_its_bits(simulate_quietly: Callable[..., Run]) -> None:
    keys = [*SMALL, "method.name=ifca", "output.checkpoint_every=1"]
    whole = simulate_quietly(*keys, "rounds=4", "name=whole")
    short = simulate_quietly(*keys, "rounds=2", "name=short")
    longer = rayfl.resume(short.path, rounds=4, quiet=True)
    assert_same(whole, longer)
    assert isinstance(longer.fingerprints, Fingerprints) and longer.fingerprints == whole.fingerprints


def test_checkpoints_of_before_without_the_partitions_fingerprint_are_resumed(
    simulate_quietly: Callable[..., Run],
) -> None:
    keys = [*SMALL, "method.name=ifca", "output.checkpoint_every=1"]
    whole = simulate_quietly(*keys, "rounds=4", "name=whole")
    short = simulate_quietly(*keys, "rounds=2", "name=short")
    for manifest in (Path(short.path) / "checkpoints").glob("round-*.json"):
        tree = json.loads(manifest.read_text())
        del tree["partition"]
        tree["check"] = check_of(tree)
        manifest.write_text(json.dumps(tree))
    assert_same(whole, rayfl.resume(short.path, rounds=4, quiet=True))


def test_a_checkpoint_of_other_planted_clusters_is_refused(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*SMALL, "method.name=ifca", "output.checkpoint_every=1", "name=mine")
    for manifest in (Path(run.path) / "checkpoints").glob("round-*.json"):
        tree = json.loads(manifest.read_text()) | {"partition": "of other clusters"}
        manifest.write_text(json.dumps(tree | {"check": check_of(tree)}))
    with pytest.raises(InputError, match="the data are not those that"):
        rayfl.resume(run.path, rounds=3, quiet=True)


def test_resuming_with_another_partition_seed_is_refused(simulate_quietly: Callable[..., Run]) -> None:
    run = simulate_quietly(*SMALL, "method.name=fedavg", "partition.seed=3", "name=mine")
    assert yaml.safe_load((Path(run.path) / "config.yaml").read_text())["partition"]["seed"] == 3
    with pytest.raises(InputError, match=r"partition\.seed=4: the run began with 3"):
        rayfl.resume(run.path, quiet=True, **{"partition.seed": 4})
