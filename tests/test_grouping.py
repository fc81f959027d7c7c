import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

from rayfl.clustering import (
    agglomerative,
    bipartition,
    components,
    cosine,
    dbscan,
    edc,
    grouping,
    kmeans,
    l2_distances,
    merge_clusters,
)


def symmetric(matrix: np.ndarray) -> np.ndarray:
    upper = np.triu(matrix, 1)
    return (upper + upper.T).astype(np.float64)


def line(*values: float) -> np.ndarray:
    places = np.array(values, np.float64)
    return np.abs(places - places[:, None])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


unhurried = settings(deadline=None)  # a busy machine is no fault
distance_tables = arrays.arrays(np.int64, (8, 8), elements=st.integers(1, 6)).map(symmetric)


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(grouping).failed == 0


# -- by density ---------------------------------------------------------------------------------------------


def test_noise_points_are_clusters_of_their_own():
    assert dbscan(line(50, 0, 1, 2, 90, 20, 21, 22), eps=1, min_points=3).tolist() == [0, 1, 1, 1, 2, 3, 3, 3]
    assert dbscan(line(0, 5, 10), eps=1, min_points=2).tolist() == [0, 1, 2]
    assert dbscan(np.zeros((0, 0)), eps=1, min_points=2).tolist() == []


def test_a_point_counts_among_its_own_neighbours():
    assert dbscan(line(0, 1), eps=1, min_points=2).tolist() == [0, 0]
    assert dbscan(line(0, 1), eps=1, min_points=3).tolist() == [0, 1]


@unhurried
@given(distance_tables, st.integers(1, 6))
def test_with_two_points_to_a_core_dbscan_finds_the_components(distances, eps):
    assert dbscan(distances, eps, min_points=2).tolist() == components(distances, eps).tolist()


# -- by a graph ---------------------------------------------------------------------------------------------


@unhurried
@given(distance_tables, st.integers(0, 6))
def test_components_are_single_linkage_cut_at_the_threshold(distances, threshold):
    assert components(distances, threshold).tolist() == agglomerative(distances, threshold, linkage="single").tolist()


@unhurried
@given(distance_tables, st.integers(0, 6), st.integers(1, 8))
def test_everyone_is_in_a_cluster_that_is_large_enough_if_one_is(distances, threshold, smallest):
    plain, found = components(distances, threshold), components(distances, threshold, smallest)
    if np.bincount(plain).max() >= smallest:
        assert np.bincount(found).min() >= smallest
    else:
        assert found.tolist() == plain.tolist()
    assert sorted(set(found)) == list(range(found.max() + 1))


def test_an_edge_at_exactly_the_threshold_counts_and_so_does_a_size_of_exactly_the_smallest():
    assert components(line(0, 2, 9, 11), threshold=2, smallest=2).tolist() == [0, 0, 1, 1]
    assert components(line(0, 2, 9, 11), threshold=1.99, smallest=1).tolist() == [0, 1, 2, 3]


def test_a_stray_client_goes_to_the_nearest_cluster_by_mean_distance():
    # 6 is 3 from the nearest on the right and 5 on the left, but on average 6.5 and 5.5.
    distances = line(0, 1, 6, 9, 10, 11, 12, 13, 14, 15, 16)
    assert components(distances, threshold=1, smallest=2).tolist() == [0, 0, 0] + [1] * 8


def test_each_member_of_a_small_component_goes_its_own_way():
    distances = line(0, 1, 2, 10, 12, 20, 21, 22)
    assert components(distances, threshold=2, smallest=3).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_clusters_merge_in_chains_and_the_lonely_one_stays():
    assert merge_clusters(line(0, 50, 2, 4), threshold=2).tolist() == [0, 1, 0, 0]
    assert merge_clusters(line(0, 50, 2, 4), threshold=1).tolist() == [0, 1, 2, 3]
    assert merge_clusters(np.zeros((1, 1)), threshold=0.5).tolist() == [0]


# -- by a tree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_that_of_scikit_learn(linkage, seed):
    distances = l2_distances(rng(seed).normal(size=(20, 3)))
    for clusters in (1, 2, 5, 20):
        theirs = AgglomerativeClustering(clusters, metric="precomputed", linkage=linkage).fit_predict(distances)
        assert adjusted_rand_score(theirs, agglomerative(distances, clusters=clusters, linkage=linkage)) == 1.0
    theirs = AgglomerativeClustering(None, metric="precomputed", linkage=linkage, distance_threshold=1.5)
    found = agglomerative(distances, threshold=1.5, linkage=linkage)
    assert adjusted_rand_score(theirs.fit_predict(distances), found) == 1.0


def test_the_number_of_clusters_is_met_though_all_distances_are_equal():
    equal = 1.0 - np.eye(6)
    for clusters in range(1, 7):
        assert agglomerative(equal, clusters=clusters).max() == clusters - 1
    assert agglomerative(equal, clusters=9).tolist() == list(range(6))


def test_linkages_differ_where_a_chain_joins_two_ends():
    chain = line(0, 1, 2.1, 3.3)
    assert agglomerative(chain, threshold=1.2, linkage="single").tolist() == [0, 0, 0, 0]
    assert agglomerative(chain, threshold=1.2, linkage="complete").tolist() == [0, 0, 1, 1]
    assert agglomerative(chain, threshold=1.7, linkage="average").tolist() == [0, 0, 1, 1]


def test_agglomerative_needs_one_goal_and_a_known_linkage():
    with pytest.raises(ValueError, match="either threshold or clusters"):
        agglomerative(line(0, 1))
    with pytest.raises(ValueError, match="either threshold or clusters"):
        agglomerative(line(0, 1), threshold=1, clusters=1)
    with pytest.raises(ValueError, match="linkage is 'ward'"):
        agglomerative(line(0, 1), threshold=1, linkage="ward")
    with pytest.raises(ValueError, match="clusters is 0"):
        agglomerative(line(0, 1), clusters=0)
    assert agglomerative(np.zeros((1, 1)), clusters=2).tolist() == [0]


# -- by halving ---------------------------------------------------------------------------------------------


def across(similarity: np.ndarray, halves: np.ndarray) -> float:
    return float(similarity[halves == 0][:, halves == 1].max())


@unhurried
@given(st.integers(2, 8), st.integers(0, 10_000), st.booleans())
def test_no_bipartition_has_a_smaller_largest_similarity_across(clients, seed, with_ties):
    similarity = cosine(*[rng(seed).normal(size=(clients, 3))] * 2)
    similarity = similarity.round(1) if with_ties else similarity
    every = [np.array((0, *rest)) for rest in itertools.product((0, 1), repeat=clients - 1) if any(rest)]
    halves = bipartition(similarity)
    assert halves[0] == 0 and set(halves) == {0, 1}
    assert across(similarity, halves) == pytest.approx(min(across(similarity, other) for other in every))


def test_complete_linkage_would_not_do():
    chain = np.eye(4) + symmetric(np.array([[0, 0.9, 0, 0], [0, 0, 0.85, 0], [0, 0, 0, 0.8], [0, 0, 0, 0]]))
    assert bipartition(chain).tolist() == [0, 0, 0, 1]
    complete = agglomerative(1 - chain, clusters=2, linkage="complete")
    assert (across(chain, bipartition(chain)), across(chain, complete)) == (0.8, 0.85)


def test_one_client_cannot_be_halved():
    assert bipartition(np.ones((1, 1))).tolist() == [0]


# -- FedGroup's features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_features_are_cosines_with_the_singular_directions_of_numpy(seed):
    updates = rng(seed).normal(size=(7, 30)) * 10.0 ** rng(seed).integers(-2, 2, (7, 1))
    _, _, directions = np.linalg.svd(updates)
    found = edc(updates, 4)
    np.testing.assert_allclose(np.abs(found), np.abs(cosine(updates, directions[:4])), atol=1e-6)
    np.testing.assert_allclose(np.square(edc(updates, 7)).sum(axis=1), 1.0)  # all directions together miss nothing


def test_the_length_of_an_update_does_not_matter_and_one_of_zero_is_at_zero():
    assert edc(np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]), 1).round(9).tolist() == [[0.0], [1.0], [1.0]]
    assert edc(np.zeros((3, 2)), 2).shape == (3, 0)


def test_directions_without_strength_are_left_out():
    updates = rng().normal(size=(6, 2)) @ rng(1).normal(size=(2, 40_000))
    assert edc(updates.astype(np.float32), 5).shape == (6, 2)
    with pytest.raises(ValueError, match="directions is 0"):
        edc(updates, 0)


def test_k_means_over_the_features_finds_planted_groups_whatever_their_step_lengths():
    truth = np.arange(24) % 3
    directions = rng().normal(size=(3, 20_000))[truth] + rng(1).normal(0, 0.5, (24, 20_000))
    updates = (directions * rng(2).uniform(0.1, 10, (24, 1))).astype(np.float32)
    assert adjusted_rand_score(truth, kmeans(edc(updates, 3), 3)[0]) == 1.0
    assert adjusted_rand_score(truth, kmeans(updates, 3)[0]) < 0.9  # while lengths mislead K-means over the updates
