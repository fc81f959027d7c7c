import doctest

import numpy as np
from sklearn.metrics import adjusted_rand_score

from rayfl.clustering import (
    NO_CLUSTER,
    Decisions,
    GranularityNorm,
    cluster_number,
    granularity,
    granularity_decisions,
    in_norm,
    l2_distances,
    match_labels,
    split_in_two,
    tune_by_granularity,
)


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


# -- numbers that last --------------------------------------------------------------------------------------


def test_matched_labels_keep_the_numbers_of_most_clients():
    assert match_labels(labels(3, 3, 1, 1), labels(0, 0, 1, 1)).tolist() == [3, 3, 1, 1]
    assert match_labels(labels(0, 0, 0, 1), labels(0, 0, 1, 1)).tolist() == [0, 0, 1, 1]
    assert match_labels(labels(-1, -1), labels(0, 1)).tolist() == [0, 1]
    assert match_labels(labels(8, 8, 8), labels(0, 1, NO_CLUSTER), fresh=50).tolist() == [8, 50, NO_CLUSTER]
