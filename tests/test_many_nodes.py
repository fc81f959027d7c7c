"""Several nodes on this machine: who sits where, nodes that are lost and nodes that come, shares of (counted) GPUs."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chaos import disturbed, undisturbed
from faults import Driver, Nodes, actors, nodes, rounds_in, wait_until
from forks import LEAN, finished
from tables import assert_same, recoveries

from rayfl.config import load_config
from rayfl.launch import simulate
from rayfl.results import load
from rayfl.simulation.screen import Screen

SEATS = """
import json, sys
from rayfl.config import load_config
from rayfl.actors.cluster import connected
from rayfl.actors.supervisor import ray_server
from rayfl.simulation.preparation import prepare

p = prepare(load_config(None, sys.argv[1:]))
with connected(p.config.ray), ray_server(p.config, lambda: p) as server:
    print(json.dumps([[seat.node, seat.gpus] for seat in server.seats]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(2, num_cpus=4, num_gpus=1, resources={"fast": 8}) as made:
        yield made


def from_another_process(script: str, cluster: Nodes, *words: str) -> Any:
    """Run a script with words of a config for this cluster; return what it prints last."""
    done = finished(["-c", script, f"ray.address={cluster.address}", *words], 280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def seats(cluster: Nodes, *words: str) -> list[tuple[str, list[int]]]:
    """Start the actors of a run, and return where they sit."""
    return [(node, gpus) for node, gpus in from_another_process(SEATS, cluster, *words)]


def test_two_actors_per_gpu_on_two_nodes_with_a_gpu_are_four_two_on_each_device(cluster: Nodes) -> None:
    found = seats(cluster, "ray.actors_per_gpu=2", "ray.cpus_per_actor=0.5")
    assert len(found) == 4
    assert sorted(Counter((node, gpus[0]) for node, gpus in found).values()) == [2, 2]


def test_more_actors_than_fit_are_refused_before_the_run_with_the_cure(cluster: Nodes, tmp_path: Path) -> None:
    words = ["ray.actors=20", "ray.actors_per_gpu=4", "ray.cpus_per_actor=0.1", f"ray.address={cluster.address}"]
    done = finished(["-m", "rayfl.cli", "run", f"output.dir={tmp_path}/runs", *words], 120)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert "ray.actors=20 do not fit: each takes 0.1 CPUs and 0.25 GPUs" in line
    assert line.count("4 fit") == 2
    assert "use ray.actors=8 or less, or lower ray.cpus_per_actor or raise ray.actors_per_gpu" in line
    assert not list(tmp_path.iterdir())


def test_actors_spread_over_the_nodes_and_take_custom_resources(cluster: Nodes) -> None:
    found = seats(cluster, "ray.resources={fast: 4}", "ray.cpus_per_actor=0.5")
    assert sorted(Counter(node for node, _ in found).values()) == [2, 2]


PLACES = """
import json, sys
import ray
from rayfl.config import load_config
from rayfl.actors import cluster, supervisor as ray_server
from rayfl.actors.cluster import connected, nodes
from rayfl.simulation.preparation import prepare

p = prepare(load_config(None, sys.argv[1:]))
with connected(p.config.ray), ray_server.ray_server(p.config, lambda: p) as server:
    found = []
    for order in (1, -1):
        cluster.nodes = lambda config: nodes(config)[::order]
        found.append([place.node_id for place in server._room()])
    have = {server.seats[0].node, ray.get_runtime_context().get_node_id()}
    print(json.dumps([found, sorted(have)]))
"""


def test_more_actors_go_where_the_data_are_before_other_nodes(cluster: Nodes) -> None:
    """One actor and a driver: at least one of three nodes has no copy. Ray's own order of the nodes is no order."""
    third = cluster.add()
    try:
        cluster.cluster.wait_for_nodes(timeout=60)
        places, have = from_another_process(PLACES, cluster, "ray.actors=1", "ray.cpus_per_actor=2")
    finally:
        cluster.cluster.remove_node(third)
    for found in places:
        assert len(found) == 5  # two on each node, and one is taken
        near = [node in have for node in found]
        assert 0 < sum(near) < 5
        assert near == sorted(near, reverse=True)


WORDS = ["local.steps=20", "participation.fraction=0.6", "rounds=25", "output.checkpoint_every=2"]


def test_a_lost_node_is_done_without_and_a_new_one_is_used(cluster: Nodes, tmp_path: Path) -> None:
    """As many actors as fit: two per node; the server is on the node that will be lost."""
    reference = simulate(load_config(None, [*WORDS, "federation=serial", f"output.dir={tmp_path}"]), Screen(quiet=True))
    node = cluster.others[-1]
    words = [f"ray.address={cluster.address}", "ray.cpus_per_actor=1.5", f"ray.server={node.node_id}"]
    driver = Driver(tmp_path / "disturbed", [*WORDS, *words, "ray.lost_after=20"])
    assert driver.wait_for_rounds(3), driver.log.read_text()
    raylet = node.all_processes["raylet"][0].process.pid
    assert len(actors("ClientActor", raylet)) == 2
    assert len(actors("ServerActor", raylet)) == 1
    cluster.kill_one(Random(0))
    assert driver.wait_for_rounds(rounds_in(driver.path) + 2), driver.log.read_text()
    new = cluster.add()
    cluster.others.append(new)
    raylet = new.all_processes["raylet"][0].process.pid
    wait_until(
        lambda: len(actors("ClientActor", raylet)) == 2 or driver.process.poll() is not None, "actors on the new node"
    )
    run = driver.finish()
    assert_same(reference, run)
    assert any("the server actor and 2 of 4 client actors; going on with 2 " in note for note in recoveries(run))


def test_when_too_little_is_left_the_run_stops_and_can_be_resumed(cluster: Nodes, tmp_path: Path) -> None:
    common = [*WORDS, "method.name=fedavg"]
    reference = simulate(
        load_config(None, [*common, "federation=serial", f"output.dir={tmp_path}"]), Screen(quiet=True)
    )
    special = cluster.cluster.add_node(**LEAN, num_cpus=2, resources={"special": 2})
    words = ["ray.resources={special: 1}", "ray.start_timeout=15", "ray.lost_after=5"]
    driver = Driver(tmp_path / "disturbed", [*common, *words, f"ray.address={cluster.address}"])
    assert driver.wait_for_rounds(2), driver.log.read_text()
    cluster.kill(special)
    assert driver.process.wait(200) == 1, driver.log.read_text()
    log = driver.log.read_text()
    assert "no client actor is left" in log
    assert f"rayfl resume {driver.path}" in log
    assert "Traceback" not in log
    driver.start("resume", str(driver.path), "ray.resources={}", "ray.actors=2")
    assert_same(reference, driver.finish())


@pytest.mark.parametrize(("method", "seed"), [("fedac", 2), ("sr_fca", 3)])
def test_random_faults_leave_no_trace(method: str, seed: int, cluster: Nodes, tmp_path: Path) -> None:
    """A handful of what `make chaos` does."""
    run, scene = disturbed(method, cluster, tmp_path / "disturbed", 2, Random(seed))
    assert scene.deeds
    assert_same(undisturbed(method, tmp_path), run)


# -- in the session's one Ray ------------------------------------------------------------------------------------


def users_own() -> Callable[[dict[str, Any]], str]:
    """What a user's own task or trial does; made here, so that Ray sends it along instead of importing this file."""

    def run_inside(overrides: dict[str, Any]) -> str:
        import rayfl

        return rayfl.run(**overrides).path

    return run_inside


def test_a_run_inside_a_placement_group_stays_inside(own_actors: None, tmp_path: Path) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}])
    ray.get(group.ready(), timeout=60)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    task = ray.remote(num_cpus=1)(users_own()).options(scheduling_strategy=strategy)
    words = {"rounds": 2, "output": {"dir": str(tmp_path)}, "method": {"name": "fedavg"}, "local": {"steps": 1}}
    try:
        # One bundle is the task's own; two are left, and the fourth CPU of this Ray is not ours.
        path = ray.get(task.remote(words), timeout=200)
        assert len(load(path).rounds) == 2
        with pytest.raises(Exception, match=r"ray\.actors=3 do not fit.*bundle 0 of the placement group has 0 CPUs"):
            ray.get(task.remote({**words, "ray": {"actors": 3}}), timeout=200)
    finally:
        remove_placement_group(group)


def test_a_named_placement_group_is_used_and_one_that_is_not_there_refused(
    own_actors: None, tmp_path: Path, simulate_quietly: Callable[..., Any]
) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from rayfl.errors import InputError

    common = ["rounds=1", "local.steps=1", "method.name=fedavg", "ray.placement_group=mine"]
    with pytest.raises(InputError, match=r"ray\.placement_group=mine: there is no placement group of this name"):
        simulate_quietly(*common)
    group = placement_group([{"CPU": 1}, {"CPU": 1}], name="mine")
    ray.get(group.ready(), timeout=60)
    try:
        with pytest.raises(InputError, match=r"ray\.actors=3 do not fit"):
            simulate_quietly(*common, "ray.actors=3")
        assert len(simulate_quietly(*common).rounds) == 1
    finally:
        remove_placement_group(group)


def test_a_trial_of_ray_tune_runs_a_simulation(own_actors: None, tmp_path: Path) -> None:
    tune = pytest.importorskip("ray.tune", reason="ray[tune] is not installed")

    run_inside = users_own()

    def trial(config: dict[str, Any]) -> None:
        words = {"rounds": 1, "output": {"dir": str(tmp_path / "runs")}, "method": {"name": "fedavg"}, "seed": 5}
        run_inside({**words, "local": {"steps": 1, "lr": config["lr"]}})

    resources = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}])
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"lr": tune.grid_search([0.1])},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    (folder,) = (tmp_path / "runs").iterdir()
    assert load(folder).config.seed == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ray.resources={fast: 1}"], r"each takes 1 CPUs and 1 fast.*ray start --resources"),
        (["ray.resources={fast: 0}"], r"positive amounts"),
        (["ray.resources={GPU: 1}"], r"ray\.gpus_per_actor"),
        (["ray.server=nowhere"], r"ray\.server=nowhere: there is no such node; use head, driver"),
    ],
)
def test_places_that_are_not_there_are_refused(
    own_actors: None, simulate_quietly: Callable[..., Any], words: list[str], told: str
) -> None:
    from rayfl.errors import InputError

    with pytest.raises(InputError, match=told):
        simulate_quietly("method.name=fedavg", "rounds=1", *words)
