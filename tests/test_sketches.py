"""Sketches of clients' models: what they keep of the models, their table, and the views drawn from it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from small_runs import small_run

import rayfl
from rayfl.analysis import views
from rayfl.clustering import count_sketch
from rayfl.config import load_config
from rayfl.errors import InputError
from rayfl.results import Run
from rayfl.simulation.server import Server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedAC long enough for planted clusters to show, half of the clients per round."""
    folder = tmp_path_factory.mktemp("sketches")
    return small_run(folder, "fedac", "output.sketches=256", "rounds=6", "participation.count=4", "local.steps=20")


# -- count sketches -----------------------------------------------------------------------------------------------


def test_sketches_keep_inner_products_on_average() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 20_000)) + 0.5
    exact, size = one @ two, 1024
    error = np.sqrt((one @ one) * (two @ two) / size)  # one standard deviation is about this
    assert abs(count_sketch(one, size) @ count_sketch(two, size) - exact) < 4 * error
    assert count_sketch(one, size) @ count_sketch(one, size) == pytest.approx(one @ one, rel=4 * np.sqrt(2 / size))


def test_every_coordinate_goes_into_one_number_with_a_sign() -> None:
    sketches = np.stack([count_sketch(row, 8) for row in np.eye(100)])
    assert (np.abs(sketches).sum(axis=1) == 1).all()
    assert set(np.unique(sketches)) == {-1.0, 0.0, 1.0}
    assert (np.abs(sketches).sum(axis=0) > 0).all()


def test_a_sketch_of_no_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 1 number"):
        count_sketch(np.ones(3), 0)


# -- the table ------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_client_that_trained(run: Run) -> None:
    sketches = pd.read_parquet(f"{run.path}/sketches")
    trained = run.clients[run.clients["trained"]]
    assert sketches[["round", "client"]].values.tolist() == trained[["round", "client"]].values.tolist()
    assert {len(sketch) for sketch in sketches["sketch"]} == {256}
    assert run.sketches["client"].tolist() == sketches["client"].tolist()


def test_a_run_without_the_key_has_no_such_table(tmp_path: Path) -> None:
    run = small_run(tmp_path, "fedavg", "rounds=1")
    assert not Path(run.path, "sketches").exists()
    assert run.sketches.empty


def test_a_row_is_the_sketch_of_what_the_client_trained(serial_server: Callable[..., Server]) -> None:
    keys = ("model.name=mlp", "partition.clients=4", "partition.clusters=2", "method.name=fedavg", "local.steps=2")
    server = serial_server(*keys, "output.sketches=16")
    record = server.run_round(1)
    assert record.sketches is not None
    models = server.fed.collect(np.arange(4))
    parameters = server.fed.layout.parameters
    initial = server.fed.initial[:parameters]
    for client, sketch in zip(record.sketches["client"], record.sketches["sketch"], strict=True):
        np.testing.assert_allclose(sketch, count_sketch(models[client] - initial, 16), rtol=1e-5, atol=1e-7)


def test_sketches_change_no_other_number(tmp_path: Path) -> None:
    plain = small_run(tmp_path, "local", "rounds=2")  # its models are never sent, so a look at them must not count
    sketched = small_run(tmp_path, "local", "rounds=2", "output.sketches=8")
    free = [name for name in plain.rounds if name != "run" and not name.startswith("seconds")]
    pd.testing.assert_frame_equal(plain.rounds[free], sketched.rounds[free], check_exact=True)


def test_a_resumed_run_has_the_sketches_of_an_undisturbed_one(tmp_path: Path) -> None:
    keys = ("output.sketches=8", "output.checkpoint_every=1")
    whole = small_run(tmp_path, "fedac", "rounds=3", *keys)
    parts = small_run(tmp_path, "fedac", "rounds=2", *keys)
    more = rayfl.resume(parts.path, rounds=3, quiet=True)
    assert more.sketches["round"].unique().tolist() == [1, 2, 3]
    np.testing.assert_array_equal(np.stack(more.sketches["sketch"]), np.stack(whole.sketches["sketch"]))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_actors_give_the_same_sketches(tmp_path: Path) -> None:
    keys = ("output.sketches=8", "rounds=2")
    serial = small_run(tmp_path, "fedac", *keys)
    actors = small_run(tmp_path, "fedac", *keys, "federation=ray", "ray.actors=2")
    files = [next(Path(run.path, "sketches").glob("*.parquet")) for run in (serial, actors)]
    one, two = (pq.read_table(file)["sketch"].to_pylist() for file in files)
    assert one == two


def test_too_many_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"output.sketches=5000: input should be less than or equal to 4096"):
        load_config(None, ["output.sketches=5000"])


# -- views ----------------------------------------------------------------------------------------------------------


def test_clients_of_a_planted_cluster_train_models_that_are_more_alike(run: Run) -> None:
    found = views.sketch_similarity(run, 1, order="client")
    together = found.truth[:, None] == found.truth
    others = ~np.eye(len(found), dtype=bool)
    assert found.values[together & others].min() > found.values[~together].max()


def test_distances_between_sketches_are_l2(run: Run) -> None:
    found = views.sketch_similarity(run, 2, "l2", order="client")
    rows = run.sketches[run.sketches["round"] == 2]
    one, two = (row.astype(float) for row in rows["sketch"].iloc[:2])
    assert found.members.tolist() == rows["client"].tolist()
    assert found.values[0, 1] == pytest.approx(np.linalg.norm(one - two), rel=1e-5)


def test_principal_components_keep_as_much_of_the_distances_as_a_plane_can(run: Run) -> None:
    found = views.plane(run)
    points = np.stack(run.sketches[run.sketches["round"] == 6]["sketch"]).astype(float)
    strengths = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose((found[["x", "y"]] ** 2).sum(), strengths[:2] ** 2)
    assert found["round"].unique().tolist() == [6]
    last = run.clients[run.clients["round"] == 6].set_index("client")
    assert found["true_cluster"].tolist() == last.loc[found["client"], "true_cluster"].tolist()


def test_t_sne_gives_the_same_points_every_time(tmp_path: Path) -> None:
    run = small_run(tmp_path, "local", "rounds=1", "output.sketches=8")
    one, two = (views.plane(run, method="tsne")[["x", "y"]] for _ in range(2))
    pd.testing.assert_frame_equal(one, two)
    assert one.shape == (8, 2)
    assert views.plane(run)["cluster"].isna().all()


def test_a_round_without_sketches_is_refused(run: Run) -> None:
    with pytest.raises(InputError, match=r"round=7: .* has sketches of the rounds 1 to 6"):
        views.plane(run, 7)
