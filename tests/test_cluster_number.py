import doctest

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, silhouette_score

from rayfl.clustering import (
    NO_CLUSTER,
    Decisions,
    GranularityNorm,
    best_cut,
    cluster_number,
    cosine_distances,
    granularity,
    granularity_decisions,
    in_norm,
    l2_distances,
    match_labels,
    silhouette_clusters,
    split_in_two,
    tune_by_granularity,
    tune_by_silhouette,
)
from rayfl.clustering.cuts import mean_silhouette


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def blobs(
    sizes: list[int], spread: float = 0.15, drift: float = 0.5, dim: int = 19, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Sketches as clients send them: a common drift, a direction per cluster, a client's own noise."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    points = np.eye(dim)[truth] + drift + rng(seed).normal(0, spread, (len(truth), dim))
    return points, truth


def measured(points: np.ndarray, assignment: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centres = np.stack([points[assignment == k].mean(axis=0) for k in clusters])
    spread = [np.square(points[assignment == k] - c).sum(axis=1).mean() for k, c in zip(clusters, centres, strict=True)]
    return np.array(spread), l2_distances(centres, squared=True)


def tuned(
    points: np.ndarray, assignment: np.ndarray, norm: GranularityNorm = "squared", **options: float
) -> np.ndarray:
    clusters = np.unique(assignment[assignment != NO_CLUSTER])
    intra, apart = measured(points, assignment, clusters)
    return tune_by_granularity(
        assignment, clusters, in_norm(intra, norm), in_norm(apart, norm), points, norm=norm, **options
    )


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(cluster_number).failed == 0


# -- granularity: the paper's rule --------------------------------------------------------------------------


def test_granularity_divides_by_the_number_of_other_clusters():
    apart = np.array([[0.0, 1, 3], [1, 0, 5], [3, 5, 0]])
    np.testing.assert_allclose(granularity(np.array([2.0, 3.0, 8.0]), apart), [2 / 2, 3 / 3, 8 / 4])


def test_granularity_is_defined_where_the_fraction_is_not():
    assert np.isnan(granularity(np.array([3.0]), np.zeros((1, 1)))).all()
    same_place = np.zeros((2, 2))
    assert granularity(np.array([0.0, 1.0]), same_place).tolist() == [0.0, np.inf]


def test_plain_distances_keep_clusters_that_squared_ones_merge():
    """Each client is 3 from its centre and the centres are 10 apart: G_c is 0.3, of squares 0.09."""
    points = np.array([[20.0, 3], [20, -3], [30, 3], [30, -3]])
    assert tuned(points, labels(0, 0, 1, 1), norm="l2").tolist() == [0, 0, 1, 1]
    assert len(set(tuned(points, labels(0, 0, 1, 1), norm="squared"))) == 1


def test_a_cluster_changes_once_per_call_and_in_order_of_position():
    # 0 takes 1's company; 1 would have gone to 0, and 2 to 1, but both find their nearest changed.
    apart = np.array([[0.0, 1, 9], [1, 0, 4], [9, 4, 0]])
    assert granularity_decisions(np.zeros(3), apart) == Decisions({0: 1}, ())
    assert granularity_decisions(np.array([0.0, 50.0, 50.0]), apart) == Decisions({0: 1}, (2,))
    assert granularity_decisions(np.array([2.0, 1.0, 3.0]), apart) == Decisions({}, ())


def test_tight_neighbours_merge_and_the_far_cluster_keeps_its_number():
    points = np.array([[1, 0.0], [1.2, 0], [1.4, 0.2], [1.6, 0.2], [-9, 3], [-7, 3]])
    assert tuned(points, labels(4, 4, 7, 7, 9, 9), lower=0.02).tolist() == [7, 7, 7, 7, 9, 9]


def test_a_wide_cluster_splits_and_its_larger_half_keeps_the_number():
    points = np.array([[9.0, 0], [9, 1], [9, -1], [0, 9], [1, 9], [5, 5], [5.5, 5.5]])
    assert tuned(points, labels(3, 3, 3, 3, 3, 5, 5), lower=0.0).tolist() == [3, 3, 3, 6, 6, 5, 5]


def test_fresh_numbers_start_where_the_caller_says():
    points = np.array([[9.0, 0], [9, 1], [0, 9], [1, 9], [5, 5], [5.5, 5.5]])
    assert tuned(points, labels(0, 0, 0, 0, 1, 1), lower=0.0, fresh=40).tolist() == [0, 0, 40, 40, 1, 1]


def test_an_empty_cluster_vanishes_and_weighs_in_no_average():
    points = np.array([[9.0, 0], [9, 2], [0, 9], [2, 9]])
    assignment, clusters = labels(0, 0, 2, 2), labels(0, 1, 2)
    apart = np.array([[0.0, 0, 128], [0, 0, 128], [128, 128, 0]])
    # Counted, the empty cluster 1 in the very place of 0 would halve 0's distance and make it split.
    result = tune_by_granularity(assignment, clusters, np.array([80.0, 5.0, 80.0]), apart, points)
    assert result.tolist() == [0, 0, 2, 2]


def test_a_one_client_cluster_is_merged_into_the_nearest():
    points = np.array([[9.0, 0], [9, 4], [9, 1], [0, 9], [4, 9]])
    assert tuned(points, labels(0, 0, 1, 2, 2), lower=0.01).tolist() == [0, 0, 0, 2, 2]


def test_clients_without_a_cluster_stay_without():
    points = np.array([[1, 0.0], [1.2, 0], [0.1, 0.1], [1.4, 0.2], [1.6, 0.2]])
    assert tuned(points, labels(0, 0, NO_CLUSTER, 1, 1)).tolist() == [1, 1, NO_CLUSTER, 1, 1]
    nobody = labels(NO_CLUSTER, NO_CLUSTER)
    result = tune_by_granularity(nobody, labels(), np.zeros(0), np.zeros((0, 0)), points[:2])
    assert result.tolist() == nobody.tolist()


def test_one_cluster_splits_only_into_halves_that_would_stand():
    apart = np.array([[9.0, 0], [9, 6], [0, 9], [6, 9]])  # 3 from centres that are 6 root 2 apart
    assert tuned(apart, labels(2, 2, 2, 2), lower=0.05).tolist() == [2, 2, 3, 3]  # G_c of both halves is 0.125
    assert tuned(apart, labels(2, 2, 2, 2)).tolist() == [2, 2, 2, 2]
    assert tuned(apart, labels(2, 2, 2, 2), norm="l2").tolist() == [2, 2, 3, 3]  # it is 0.35
    too_clear = np.array([[9.0, 0], [9, 0.1], [0, 9], [0.1, 9]])  # would be merged again at once
    assert tuned(too_clear, labels(2, 2, 2, 2)).tolist() == [2, 2, 2, 2]
    same = np.ones((4, 2))
    assert tuned(same, labels(2, 2, 2, 2)).tolist() == [2, 2, 2, 2]
    assert tuned(same[:1], labels(2)).tolist() == [2]


def test_granularity_tuning_never_has_more_clusters_than_clients():
    points, assignment = rng(1).normal(size=(12, 5)), np.zeros(12, np.int64)
    for _ in range(30):
        assignment = tuned(points, assignment, lower=0.0, upper=0.0)
        assert (np.bincount(assignment) > 0).sum() <= 12


def test_granularity_tuning_does_not_depend_on_how_clients_are_numbered():
    points, _ = blobs([5, 6, 7], spread=0.4)
    assignment = np.repeat([0, 1], [8, 10])
    order = rng(3).permutation(18)
    plain, shuffled = tuned(points, assignment), tuned(points[order], assignment[order])
    assert adjusted_rand_score(plain[order], shuffled) == 1.0


def test_a_split_separates_the_two_farthest_directions():
    points, truth = blobs([4, 6], spread=0.1)
    halves = split_in_two(points)
    assert adjusted_rand_score(truth, halves) == 1.0
    assert np.bincount(halves).tolist() == [6, 4]
    assert split_in_two(np.array([[1.0, 1.0], [3.0, 3.0]])).tolist() == [0, 0]


# -- silhouette: found from any start -----------------------------------------------------------------------


def test_silhouettes_are_those_of_scikit_learn():
    points, truth = blobs([3, 1, 5])
    distances = cosine_distances(points)
    expected = silhouette_score(distances, truth, metric="precomputed")
    assert mean_silhouette(distances, truth) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sizes", [[10, 10], [5, 5, 5, 5], [4, 4, 4, 4, 4, 4], [3, 5, 20], [2, 4, 6, 28]])
@pytest.mark.parametrize("seed", range(4))
def test_planted_clusters_are_found_whatever_their_number_and_sizes(sizes, seed):
    points, truth = blobs(sizes, seed=seed)
    assert adjusted_rand_score(truth, silhouette_clusters(points, rng(seed)).assignment) == 1.0


@pytest.mark.parametrize("clients", [4, 5, 8, 20, 60])
@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_noise_is_one_cluster(clients, drift):
    for seed in range(20):
        noise = drift + rng(seed).normal(0, 1, (clients, 200))
        assert not silhouette_clusters(noise, rng(seed)).assignment.any()


def test_noise_with_few_strong_directions_is_mostly_one_cluster():
    # A flat cloud has high silhouettes by itself; only the null reference tells it from clusters.
    strengths = 0.5 ** np.arange(19)
    split = [silhouette_clusters(rng(s).normal(0, strengths, (20, 19)), rng(s)).assignment.any() for s in range(40)]
    assert np.mean(split) <= 0.1


def test_clients_that_trained_less_are_not_a_cluster():
    for seed in range(10):
        towards = np.ones(19) + rng(seed).normal(0, 0.3, (20, 19))
        progress = np.where(np.arange(20) < 8, 0.2, 1.0)[:, None]
        assert not silhouette_clusters(towards * progress, rng(seed)).assignment.any()
    points, truth = blobs([5, 5, 5, 5], drift=0.1)
    progress = np.where(np.arange(20) % 3 == 0, 0.5, 1.0)[:, None]
    assert adjusted_rand_score(truth, silhouette_clusters(points * progress, rng()).assignment) == 1.0


def test_fewer_than_four_clients_are_one_cluster():
    for clients in (1, 2, 3):
        verdict = silhouette_clusters(np.eye(3)[:clients], rng())
        assert verdict.assignment.tolist() == [0] * clients
        assert verdict.silhouette == 0.0


def test_equal_clients_are_one_cluster():
    assert not silhouette_clusters(np.ones((8, 3)), rng()).assignment.any()
    assert not silhouette_clusters(np.zeros((8, 3)), rng()).assignment.any()
    assert not silhouette_clusters(np.zeros((8, 0)), rng()).assignment.any()


def test_the_cut_never_has_more_clusters_than_allowed():
    points, _ = blobs([4] * 6)
    assert best_cut(cosine_distances(points), max_clusters=3)[0].max() == 2


def test_clusters_do_not_depend_on_how_clients_are_numbered():
    points, _ = blobs([3, 5, 9])
    order = rng(5).permutation(17)
    plain, shuffled = silhouette_clusters(points, rng()), silhouette_clusters(points[order], rng())
    assert adjusted_rand_score(plain.assignment[order], shuffled.assignment) == 1.0
    assert plain.silhouette == pytest.approx(shuffled.silhouette)


def test_the_same_generator_gives_the_same_verdict():
    points, _ = blobs([5, 5, 5])
    a, b = silhouette_clusters(points, rng(7)), silhouette_clusters(points, rng(7))
    assert a.null == b.null and a.assignment.tolist() == b.assignment.tolist()


def test_many_clients_are_clustered_by_a_sample():
    points, truth = blobs([3000, 1000, 6000])
    verdict = silhouette_clusters(points, rng(), sample=100)
    assert adjusted_rand_score(truth, verdict.assignment) == 1.0
    assert not silhouette_clusters(rng(1).normal(size=(5000, 19)), rng(), sample=100).assignment.any()


def test_tuning_splits_a_cluster_that_holds_two_and_leaves_the_others():
    points, truth = blobs([6, 6, 6])
    assignment = labels(2, 9, 9)[truth]
    assert tune_by_silhouette(assignment, points, rng()).tolist() == [2] * 6 + [9] * 6 + [10] * 6
    assert tune_by_silhouette(assignment, points, rng(), fresh=20).tolist() == [2] * 6 + [9] * 6 + [20] * 6


def test_tuning_takes_a_false_split_back():
    points, truth = blobs([8, 8])
    assignment = np.where(truth == 0, 0, 1 + np.arange(16) % 2)
    result = tune_by_silhouette(assignment, points, rng())
    assert adjusted_rand_score(truth, result) == 1.0
    assert set(result[:8]) == {0} and set(result[8:]) < {1, 2}
    noise = rng(2).normal(size=(16, 15))
    assert len(set(tune_by_silhouette(np.arange(16) % 2, noise, rng()))) == 1


def test_tuning_leaves_right_clusters_and_absent_clients_alone():
    points, truth = blobs([5, 5, 5, 5])
    assignment = truth + 3
    assignment[[0, 7]] = NO_CLUSTER
    assert tune_by_silhouette(assignment, points, rng()).tolist() == assignment.tolist()
    nobody = np.full(20, NO_CLUSTER)
    assert tune_by_silhouette(nobody, points, rng()).tolist() == nobody.tolist()


def test_repeated_tuning_finds_the_clusters_from_one_that_holds_them_all():
    points, truth = blobs([5, 5, 5, 5])
    assignment = np.zeros(20, np.int64)
    for seed in range(4):
        assignment = tune_by_silhouette(assignment, points, rng(seed))
        assert adjusted_rand_score(truth, assignment) == 1.0


def test_matched_labels_keep_the_numbers_of_most_clients():
    assert match_labels(labels(3, 3, 1, 1), labels(0, 0, 1, 1)).tolist() == [3, 3, 1, 1]
    assert match_labels(labels(0, 0, 0, 1), labels(0, 0, 1, 1)).tolist() == [0, 0, 1, 1]
    assert match_labels(labels(-1, -1), labels(0, 1)).tolist() == [0, 1]
    assert match_labels(labels(8, 8, 8), labels(0, 1, NO_CLUSTER), fresh=50).tolist() == [8, 50, NO_CLUSTER]
