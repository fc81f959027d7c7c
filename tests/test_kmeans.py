import doctest
import importlib
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from rayfl.clustering import best_kmeans, kmeans, nearest

unhurried = settings(deadline=None)  # a busy machine is no fault
small_whole_numbers = arrays.arrays(np.float64, (9, 2), elements=st.integers(-3, 3).map(float))


@pytest.fixture(autouse=True, scope="module")
def one_thread_per_product():
    """As where servers run: on a busy machine, threads of tiny products wait for each other for seconds."""
    with threadpool_limits(1):
        yield


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def cost(points: np.ndarray, weights: np.ndarray, assignment: np.ndarray, centres: np.ndarray) -> float:
    return float(weights @ np.square(points - centres[assignment]).sum(axis=1))


def lowest_cost(points: np.ndarray, weights: np.ndarray, clusters: int) -> float:
    costs = []
    for assignment in itertools.product(range(clusters), repeat=len(points)):
        labels = np.array(assignment)
        parts = [labels == k for k in set(assignment)]
        spread = [np.square(points[p] - np.average(points[p], axis=0, weights=weights[p])).sum(axis=1) for p in parts]
        costs.append(sum(float(weights[p] @ s) for p, s in zip(parts, spread, strict=True)))
    return min(costs)


def test_the_examples_in_the_docstrings_are_true():
    # The package's `kmeans` is the function; the module is found by its name.
    assert doctest.testmod(importlib.import_module("rayfl.clustering.kmeans")).failed == 0


def test_weights_change_the_clusters_so_wecfl_is_not_fesem():
    points, start = column(0, 1, 2, 6), column(1, 2)
    # FeSEM: centres 0.5 and 4 after one step, so 2 changes sides.
    assignment, centres = kmeans(points, 2, start=start)
    assert assignment.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(centres, column(1, 6))
    # WeCFL: the heavy 2 holds its centre at 24 / 10, and stays; both are the best clusters by their own weights.
    weights = np.array([9, 1, 9, 1])
    assignment, centres = kmeans(points, 2, weights, start)
    assert assignment.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(centres, column(0.1, 2.4))
    assert cost(points, weights, assignment, centres) == pytest.approx(lowest_cost(points, weights, 2))


def test_a_weight_of_three_is_the_same_client_three_times():
    for seed in range(10):
        points, weights = rng(seed).normal(size=(12, 3)), rng(seed).integers(1, 5, 12)
        weighted, centres = kmeans(points, 3, weights, start=points[:3])
        repeated, same_centres = kmeans(np.repeat(points, weights, axis=0), 3, start=points[:3])
        assert np.repeat(weighted, weights).tolist() == repeated.tolist()
        np.testing.assert_allclose(centres, same_centres)


def test_one_iteration_is_one_e_step_and_one_m_step():
    points, start = column(0, 1, 2, 6), column(1, 2)
    assignment, centres = kmeans(points, 2, start=start, iterations=1)
    assert (assignment.tolist(), centres.ravel().tolist()) == ([0, 0, 1, 1], [0.5, 4.0])


@pytest.mark.parametrize("seed", range(5))
def test_from_the_same_start_it_is_scikit_learns_k_means(seed):
    points, weights = rng(seed).normal(size=(60, 4)), rng(seed).uniform(0.5, 5, 60)
    theirs = KMeans(4, init=points[:4], n_init=1, tol=0).fit(points, sample_weight=weights)
    assignment, centres = kmeans(points, 4, weights, start=points[:4])
    assert assignment.tolist() == theirs.labels_.tolist()
    np.testing.assert_allclose(centres, theirs.cluster_centers_)


@pytest.mark.parametrize("clusters", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_a_few_seeds_is_the_best_of_all_clusterings(clusters, seed):
    points, weights = rng(seed).normal(size=(7, 2)), rng(seed).uniform(0.2, 4, 7)
    found = [cost(points, weights, *kmeans(points, clusters, weights, seed=start)) for start in range(12)]
    assert min(found) == pytest.approx(lowest_cost(points, weights, clusters))


@unhurried
@given(small_whole_numbers, st.lists(st.integers(1, 9), min_size=9, max_size=9), st.integers(0, 99))
def test_every_step_lowers_the_cost_or_is_the_last(points, weights, seed):
    masses = np.array(weights, float)
    costs = [cost(points, masses, *kmeans(points, 3, weights, seed=seed, iterations=i)) for i in range(1, 6)]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(costs))


@unhurried
@given(small_whole_numbers, st.integers(0, 99))
def test_without_a_start_there_are_as_many_clusters_as_distinct_points_allow(points, seed):
    distinct = len({tuple(point) for point in points})
    assignment, centres = kmeans(points, 20, seed=seed)
    assert len(centres) == distinct
    np.testing.assert_array_equal(centres[assignment], points)
    assert len(kmeans(points, 2, seed=seed)[1]) == min(2, distinct)


def test_planted_clusters_are_found_though_all_lie_close_together_far_from_zero():
    truth = np.repeat(np.arange(4), 10)
    for seed in range(10):
        points = 1e7 + np.eye(4)[truth] + rng(seed).normal(0, 0.05, (40, 4))
        assert adjusted_rand_score(truth, kmeans(points, 4, seed=seed)[0]) == 1.0


def test_a_warm_start_keeps_what_the_numbers_mean():
    truth = np.repeat(np.arange(3), 5)
    points = 10 * np.eye(3)[truth] + rng().normal(0, 1, (15, 3))
    for order in itertools.permutations(range(3)):
        start = 10 * np.eye(3)[list(order)]
        assert np.array(order)[kmeans(points, 3, start=start)[0]].tolist() == truth.tolist()


def test_a_cluster_that_loses_all_clients_keeps_its_centre_and_wins_them_back():
    start = column(0, 100)
    assignment, centres = kmeans(column(1, 3), 2, start=start)
    assert (assignment.tolist(), centres.ravel().tolist()) == ([0, 0], [2.0, 100.0])
    assignment, centres = kmeans(column(1, 90), 2, start=centres)
    assert (assignment.tolist(), centres.ravel().tolist()) == ([0, 1], [1.0, 90.0])


def test_more_clusters_than_clients_leave_the_surplus_centres_in_place():
    assignment, centres = kmeans(column(4), 3, start=column(0, 5, 9))
    assert (assignment.tolist(), centres.ravel().tolist()) == ([1], [0.0, 4.0, 9.0])
    assignment, centres = kmeans(np.zeros((0, 1)), 2, start=column(0, 5))
    assert (assignment.tolist(), centres.ravel().tolist()) == ([], [0.0, 5.0])


def test_a_start_with_too_few_centres_is_filled_up():
    assignment, centres = kmeans(column(0, 1, 50, 51), 2, start=column(50))
    assert (assignment.tolist(), centres.ravel().tolist()) == ([1, 1, 0, 0], [50.5, 0.5])


def test_a_client_without_weight_joins_a_cluster_but_moves_no_centre():
    assignment, centres = kmeans(column(0, 2, 40), 2, weights=[1, 0, 1], start=column(0, 40))
    assert (assignment.tolist(), centres.ravel().tolist()) == ([0, 0, 1], [0.0, 40.0])
    # Its own place is no cluster: alone beside an empty centre it leaves that centre where it is.
    assert kmeans(column(0, 2, 40), 3, weights=[1, 0, 1], start=column(0, 3, 40))[1].ravel().tolist() == [0, 3, 40]
    assert len(kmeans(column(0, 2, 40), 3, weights=[1, 0, 1])[1]) == 2


def test_the_same_seed_gives_the_same_bits_and_the_start_is_left_alone():
    points = rng().normal(size=(50, 6)).astype(np.float32)
    start = points[:5].copy()
    for options in ({"seed": 3}, {"start": start}):
        one, other = kmeans(points, 5, **options), kmeans(points, 5, **options)
        assert one[0].tolist() == other[0].tolist() and one[1].tobytes() == other[1].tobytes()
    assert np.array_equal(start, points[:5])


def test_ties_go_to_the_lowest_number():
    assert nearest(column(1, -1, 0), column(0, 2, 2, 0)).tolist() == [0, 0, 0]
    assert nearest(column(2, 1), column(3, 2, 2, 0)).tolist() == [1, 1]


def test_blocks_of_rows_and_columns_leave_no_trace():
    points = rng().standard_normal((600, 17_000), np.float32)
    centres = points[[5, 300, 599]].astype(np.float64) * 0.9
    expected = np.stack([np.square(points - centre).sum(axis=1) for centre in centres], axis=1).argmin(axis=1)
    assert nearest(points, centres).tolist() == expected.tolist()
    assignment, means = kmeans(points, 3, start=centres, iterations=1)
    np.testing.assert_allclose(means, [points[assignment == k].mean(axis=0, dtype=float) for k in range(3)], atol=1e-12)


def test_memory_does_not_grow_with_points_times_clusters_times_numbers():
    points = rng().normal(size=(2000, 1000)).astype(np.float32)  # 8 MB; times 40 clusters in float64 640 MB
    tracemalloc.start()
    kmeans(points, 40, start=points[:40], iterations=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


def test_what_cannot_be_clustered_is_refused():
    points = column(0, 1)
    with pytest.raises(ValueError, match="clusters is 0"):
        kmeans(points, 0)
    with pytest.raises(ValueError, match="weights must be 2"):
        kmeans(points, 2, weights=[1.0])
    with pytest.raises(ValueError, match="none negative"):
        kmeans(points, 2, weights=[1.0, -1.0])
    with pytest.raises(ValueError, match=r"start has shape \(3, 1\); expected up to 2 rows of 1"):
        kmeans(points, 2, start=column(0, 1, 2))
    with pytest.raises(ValueError, match="no row with a weight"):
        kmeans(np.zeros((0, 2)), 2)


# -- the best of several starts --------------------------------------------------------------------------------------


def two_levels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Twenty clusters in three groups far apart: a start that misses one of them does not come back."""
    draw, width = rng(seed), 300
    true = draw.integers(0, 20, 200)
    centres = draw.normal(size=(20, width)) * 3 + (draw.normal(size=(3, width)) * 18)[np.arange(20) % 3]
    return ((centres[true] + draw.normal(size=(200, width))) / np.sqrt(width)).astype(np.float32), true


def test_the_best_of_ten_starts_is_right_where_single_ones_fail():
    single, best = [], []
    for seed in range(4):
        points, true = two_levels(seed)
        single.append(adjusted_rand_score(true, kmeans(points, 20, seed=seed)[0]))
        best.append(adjusted_rand_score(true, best_kmeans(points, 20, seed=seed)))
    assert min(single) < 1.0
    assert best == [1.0] * 4


def test_one_start_is_plain_k_means_in_fewer_dimensions():
    points = rng().normal(size=(30, 5000)).astype(np.float32) + 100  # far from zero, where cancellation would show
    points[:15, :50] += 0.5
    weights, start = rng(1).integers(1, 9, 30), points[[3, 20, 21]] * 0.99
    expected, _ = kmeans(points, 3, weights, start)
    assert len(set(expected)) > 1
    assert best_kmeans(points, 3, weights, start, starts=1).tolist() == expected.tolist()


def test_a_poor_warm_start_is_left_and_the_numbers_stay_with_their_clients():
    points = np.hstack([column(0, 1, 10, 11, 20, 21), np.zeros((6, 20))])
    stuck = points[[0, 1, 3]]  # the first two keep a point each, and the third gets two groups
    before = np.array([1, 1, -1, 2, 0, 0])
    assert kmeans(points, 3, start=stuck)[0].tolist() == [0, 1, 2, 2, 2, 2]
    assert best_kmeans(points, 3, start=stuck, previous=before).tolist() == [1, 1, 2, 2, 0, 0]
    # Nobody had number 1 or 2, and a number below three goes to each.
    strangers = np.array([0, 0, -1, -1, -1, -1])
    found = best_kmeans(points, 3, start=stuck, previous=strangers)
    assert found[0] == found[1] == 0
    assert sorted({*found.tolist()}) == [0, 1, 2]


def test_a_good_warm_start_keeps_its_own_numbers():
    points, good = column(0, 1, 10, 11, 20, 21), column(20, 0, 10)
    found = best_kmeans(points, 3, start=good, previous=np.array([2, 2, 2, 0, 0, 0]))
    assert found.tolist() == [1, 1, 2, 2, 0, 0]


def test_weights_decide_which_start_is_best():
    points, start, before = column(0, 4, 7), column(0, 5.5), np.array([0, 1, 1])
    assert best_kmeans(points, 2, start=start, previous=before).tolist() == [0, 1, 1]  # 4.5, against 8 for {0, 4}, {7}
    # The heavy 7 is worth a centre of its own: 8, against 900 / 101.
    assert best_kmeans(points, 2, [1, 1, 100], start, before).tolist() == [0, 0, 1]


def test_a_part_of_the_clients_is_not_split_only_because_there_are_numbers_left():
    """Of four clusters two are present: with four centres a new draw is always nearer."""
    points = column(0, 1, 2, 30, 31, 32)
    start, before = column(1, 31, 60, 90), np.array([0, 0, 0, 1, 1, 1])
    assert best_kmeans(points, 4, start=start, previous=before, fill=False).tolist() == before.tolist()
    assert len(set(best_kmeans(points, 4, start=start, previous=before).tolist())) == 4


@pytest.mark.parametrize("width", [1, 20])
def test_a_client_that_diverged_does_not_stop_the_run(width: int):
    points = np.hstack([column(0, 1, 10, 11), np.zeros((4, width - 1))])
    points[3] = np.nan
    found = best_kmeans(points, 2, start=points[[0, 2]], previous=np.array([0, 0, 1, 1]))
    assert found.tolist() == kmeans(points, 2, start=points[[0, 2]])[0].tolist()


def test_the_best_of_many_starts_takes_no_second_copy_of_the_points():
    points = rng().standard_normal((50, 150_000), np.float32)  # 30 MB
    tracemalloc.start()
    best_kmeans(points, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.7 * points.nbytes
