"""Rules for the number of clusters, on points of which the clusters are known."""

import doctest

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster
from sklearn.metrics import adjusted_rand_score, silhouette_score

from rayfl.clustering import cosine_distances, cuts, find_clusters, finding
from rayfl.clustering.cuts import average_linkage, cut, silhouettes
from rayfl.clustering.rules import RULES, Evidence, agreement, stability


def looks(
    sizes: list[int], noise: float = 0.15, own: float = 0.1, seed: int = 0, dim: int = 24
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two looks at clients: a direction per cluster, what is the client's own, and the noise of each look."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    clients = np.eye(len(sizes), dim)[truth] + 0.4 + rng.normal(0, own, (len(truth), dim))
    one, other = (clients + rng.normal(0, noise, clients.shape) for _ in range(2))
    return one, other, truth


@pytest.mark.parametrize("module", [cuts, finding])
def test_the_examples_in_the_docstrings_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_cuts_and_their_silhouettes_are_those_of_scipy_and_sklearn() -> None:
    points, _, _ = looks([7, 5, 4, 9])
    distances = cosine_distances(points)
    tree = average_linkage(distances)
    counts = [2, 3, 4, 7, 12]
    for count, value in zip(counts, silhouettes(distances, tree, counts), strict=True):
        labels = cut(tree, count)
        assert adjusted_rand_score(labels, fcluster(tree, count, "maxclust")) == 1
        assert value == pytest.approx(silhouette_score(distances, labels, metric="precomputed"), abs=1e-12)


def test_a_tie_does_not_keep_a_cut_from_having_so_many_clusters() -> None:
    square = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    distances = np.abs(square[:, None] - square[None]).sum(axis=2)
    assert [int(cut(average_linkage(distances), k).max()) + 1 for k in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("sizes", [[12, 8], [10] * 4, [42, 10, 6, 2], [5] * 16], ids=["2", "4", "unequal", "16"])
@pytest.mark.parametrize("seed", range(3))
def test_planted_clusters_are_found_by_two_looks(sizes: list[int], seed: int) -> None:
    one, other, truth = looks(sizes, 0.08, 0.05, seed=seed)
    found = find_clusters(one, other)
    assert found.clusters == len(sizes)
    assert adjusted_rand_score(truth, found.assignment) == 1
    assert len(sizes) in found.supported and not found.at_the_limit


def test_sixty_clusters_are_not_reported_as_one() -> None:
    one, other, truth = looks([4] * 60, 0.05, 0.03, seed=1, dim=60)
    found = find_clusters(one, other)
    assert adjusted_rand_score(truth, found.assignment) > 0.95


def test_without_clusters_two_looks_find_one() -> None:
    """Clients that differ, each in its own way, with long tails: what repeats is not what belongs together."""
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        clients = 0.5 + 0.1 * rng.standard_t(4, (30, 20))
        one, other = (clients + rng.normal(0, 0.1, clients.shape) for _ in range(2))
        alarms += find_clusters(one, other, seed=seed).clusters > 1
    assert alarms <= 1


def test_agreement_needs_what_the_null_and_the_second_look_support() -> None:
    one, other, _ = looks([10] * 4)
    evidence = Evidence((one + other) / 2, np.random.default_rng(0), 20, (one, other))
    found = agreement(evidence)
    assert {*found.supported} <= {*stability(evidence).supported}
    above = {k for k, score, null in zip(found.counts, found.scores, found.null, strict=True) if score > null}
    assert {*found.supported} <= above
    shuffled = Evidence(one, np.random.default_rng(0), 20, (one, np.random.default_rng(1).permutation(other)))
    assert stability(shuffled).clusters == 1


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_tells_far_clusters_apart(rule: str) -> None:
    one, other, truth = looks([10] * 4, noise=0.03, own=0.02)
    assert adjusted_rand_score(truth, find_clusters(one, other, rule=rule).assignment) > 0.8


def test_more_points_than_the_sample_join_the_cluster_that_they_point_to() -> None:
    one, other, truth = looks([300, 200, 100])
    found = find_clusters(one, other, sample=80)
    assert adjusted_rand_score(truth, found.assignment) > 0.99
    assert found.assignment[0] == 0


def test_the_greatest_number_is_reported_where_it_binds() -> None:
    one, other, _ = looks([8] * 4)
    assert find_clusters(one, other, most=4).at_the_limit
    assert not find_clusters(one, other, most=5).at_the_limit


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_points_are_one_cluster(rows: int) -> None:
    assert find_clusters(np.eye(3)[:rows], np.eye(3)[:rows]).clusters == 1


def test_bad_input_is_refused_with_what_to_do() -> None:
    points = np.eye(6)
    with pytest.raises(ValueError, match="finite numbers, a row for each client"):
        find_clusters(np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match="give the same rows twice"):
        find_clusters(points, points[:3])
    with pytest.raises(ValueError, match="use one of silhouette"):
        find_clusters(points, rule="magic")
    with pytest.raises(ValueError, match="give both streams"):
        find_clusters(points, rule="agreement")
