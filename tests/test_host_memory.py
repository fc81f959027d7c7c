"""What a run needs of this machine is known before it is allocated, and what cannot fit is refused with the figures."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfl import host_memory
from rayfl.client.worker import Worker
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.host_memory import (
    Need,
    batches_need,
    clients_need,
    memory_here,
    network_need,
    refuse_excess,
    seen_need,
    server_need,
)
from rayfl.results import Run
from rayfl.simulation import preparation
from rayfl.simulation.preparation import prepare


def test_the_parts_of_a_run_by_hand() -> None:
    """A network of 1000 weights is 4000 bytes."""
    assert network_need(1000).bytes == 4 * 4000  # weights, gradient, initial, start
    assert network_need(1000, processes=3).bytes == 3 * 4 * 4000
    assert server_need(1000, models=10).bytes == 3 * 10 * 4000  # old, new, means
    assert clients_need(1000, cohort=50, budget=2**20).bytes == 50 * 4000
    assert clients_need(1000, cohort=50, budget=100_000).bytes == 100_000  # the other 25 are in files
    assert batches_need(10 * 32).bytes == 320 * 8
    assert seen_need(100, 64, most=2**20).bytes == 100 * 65
    assert seen_need(10**6, 64, most=2**20, processes=2).bytes == 2 * 2**20


def test_what_does_not_fit_is_told_with_all_figures_and_the_key_of_the_largest() -> None:
    needs = [Need("a", 3_000_000_000, "key.a"), Need("b", 9_000_000_000, "key.b"), Need("c", 1000, "key.c")]
    refuse_excess(needs, 12_000_001_000)
    with pytest.raises(InputError) as told:
        refuse_excess(needs, 12_000_000_999)
    assert str(told.value) == (
        "the run needs at least 12.0 GB of memory, and there are 12.0 GB here: 9.0 GB for b, 3.0 GB for a; lower key.b"
    )


@pytest.mark.parametrize(
    ("line", "file", "limit"),
    [
        ("0::/jobs/7", "sys/fs/cgroup/jobs/7/memory.max", 5_000_000),
        ("0::/jobs/7", "sys/fs/cgroup/jobs/memory.max", 5_000_000),
        ("0::/of/the/host", "sys/fs/cgroup/memory.max", 5_000_000),
        ("4:cpu,memory:/jobs", "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", 5_000_000),
        ("4:memory:/of/the/host", "sys/fs/cgroup/memory/memory.limit_in_bytes", 5_000_000),
        ("4:cpu:/jobs", "sys/fs/cgroup/cpu/jobs/memory.limit_in_bytes", None),
        ("nonsense", "sys/fs/cgroup/memory.max", None),
    ],
)
def test_the_limit_of_a_control_group_counts(tmp_path: Path, line: str, file: str, limit: int | None) -> None:
    for name, text in {"proc/self/cgroup": f"{line}\n", file: "5000000\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_here(tmp_path) == (limit or memory_here(tmp_path / "nothing"))


def test_a_group_without_a_limit_has_all_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_here(tmp_path) == memory_here(tmp_path / "nothing") > 2**28


TOO_LARGE = {
    "a wide network": (
        ["model.options.channels=200000"],
        r"GB for a network of 720,018,400,010 parameters.*lower .*model\.options",
    ),
    "a wide dense network": (["model={name: mlp, options: {hidden: 1000000}}"], r"for a network of 75,000,010"),
    "many models": (
        ["method={name: ifca, clusters: 10000}"],
        r"for 10,000 models on the server.*lower method\.clusters",
    ),
    "many federations": (["method={name: fedavg_ensemble, clusters: 10000}"], r"10,000 models on the server"),
    "many steps": (["local.steps=1000000000"], r"the order of 32,000,000,000 samples.*lower local\.steps"),
    "many epochs": (["local.epochs=1000000000"], r"the order of .* samples.*local\.epochs"),
}


@pytest.mark.parametrize("federation", ["serial", "ray"])
@pytest.mark.parametrize("what", TOO_LARGE)
def test_what_cannot_fit_is_refused_before_it_is_allocated(
    what: str, federation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(preparation, "memory_here", lambda: 600_000_000)
    words, told = TOO_LARGE[what]
    before = resident()
    with pytest.raises(InputError, match=told):
        prepare(load_config(None, [f"federation={federation}", *words]))
    assert resident() - before < 500_000_000


def resident() -> int:
    """The most memory that this process has had, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "memory_here", lambda: 20_000_000)
    for name in ("fedac", "ifca", "local", "fedavg_ensemble"):
        prepare(load_config(None, ["federation=serial", f"method.name={name}"]))


TURNED = "partition={kind: composed, clients: 10, features: [{kind: rotation, angle: [0, 45]}]}"


def needs_of(*words: str) -> dict[str, int]:
    """What `prepare` finds that a run needs, by what it is for."""
    ready = prepare(load_config(None, ["federation=serial", "method.name=fedavg", "model.name=mlp", *words]))
    size = ready.facts.layout.size
    return {need.what: need.bytes for need in preparation._needs(ready.config, ready.dataset, ready.partition, size)}


def test_transformed_samples_that_workers_keep_are_counted() -> None:
    """Digits have 64 pixels, and a mark says whether one is made; half of the clients are turned by 45 degrees."""
    partition = prepare(load_config(None, ["federation=serial", "model.name=mlp", TURNED])).partition
    turned = slice(5, 10)
    samples = int((partition.n_train + partition.n_test)[turned].sum())
    assert needs_of(TURNED)[f"{samples:,} transformed samples"] == 65 * samples
    tested = int(partition.n_test[turned].sum())  # five may train, and none of them need be among the turned ones
    assert needs_of(TURNED, "participation.count=5")[f"{tested:,} transformed samples"] == 65 * tested
    assert not any("transformed" in what for what in needs_of("partition.kind=transforms"))  # quarter turns: no work


def test_workers_keep_as_many_bytes_of_transformed_samples_as_are_counted() -> None:
    ready = prepare(load_config(None, ["federation=serial", "method.name=fedavg", "model.name=mlp", TURNED]))
    worker = Worker(ready.config, ready.dataset, ready.partition)
    for client in range(10):
        for samples in (ready.partition.train_of(client), ready.partition.test_of(client)):
            worker.samples(client, samples, 1)
    (counted,) = [bytes for what, bytes in needs_of(TURNED).items() if "transformed" in what]
    assert worker._seen.bytes == counted


def test_transformed_samples_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "seen_need", lambda *_: Need("transformed samples", 10**9, "data.limit"))
    monkeypatch.setattr(preparation, "memory_here", lambda: 600_000_000)
    with pytest.raises(InputError, match=r"1\.0 GB for transformed samples; lower data\.limit"):
        prepare(load_config(None, ["federation=serial", "method.name=fedavg", "model.name=mlp", TURNED]))


@pytest.mark.parametrize("training", ["loop", "vectorised"])
def test_a_batch_that_no_client_can_fill_costs_no_more_than_the_largest_client(
    training: str, simulate_quietly: Callable[..., Run]
) -> None:
    words = ["federation=serial", "local.batch_size=1000000000", "local.steps=1", "method.name=fedavg", "rounds=1"]
    run = simulate_quietly(*words, f"training={training}")
    assert run.config.training == training
    assert len(run.rounds) == 1


def test_the_memory_of_other_nodes_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client actors and the server are elsewhere; here are the data, and the network once."""
    monkeypatch.setattr(preparation, "memory_here", lambda: 20_000_000)
    prepare(load_config(None, ["ray.address=ray://elsewhere:10001", "method={name: ifca, clusters: 10000}"]))


def test_a_small_file_that_unpacks_to_more_than_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("train_images.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1000, 100, 100)})
        file.write(bytes(10_000_000))
    assert path.stat().st_size < 100_000
    from rayfl.data.sources import npz

    monkeypatch.setattr(npz, "memory_here", lambda: 9_000_000)
    with pytest.raises(InputError, match=r"10\.0 MB for the arrays of bomb\.npz"):
        prepare(load_config(None, ["data.source=npz", f"data.path={path}"]))


def test_the_module_has_examples_that_hold() -> None:
    import doctest

    assert doctest.testmod(host_memory).failed == 0
