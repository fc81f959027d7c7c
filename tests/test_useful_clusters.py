"""Clusters that help: a problem in which models, losses and means are known, and numbers worked out by hand."""

import doctest

import numpy as np
import pytest
import scipy
from sklearn.metrics import adjusted_rand_score

from rayfl.clustering import average_linkage, cosine_distances, groups_of_tree, levels_of_tree, useful, useful_clusters
from rayfl.clustering.cuts import mean_silhouette
from rayfl.clustering.useful import UsefulClusters


def clients(
    sizes: list[int], noise: float = 0.3, own: float = 0.1, dim: int = 30, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is best for each client, the model that it trained, and its cluster.

    Clients of a cluster differ in what is best for them (`own`), and each model misses that by chance (`noise`).
    """
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    directions = np.linalg.qr(rng.normal(size=(max(dim, len(sizes)), max(dim, len(sizes)))))[0][: len(sizes)]
    best = 1.0 + 4 * directions[truth] + own * rng.normal(size=(len(truth), directions.shape[1]))
    return best, best + noise * rng.normal(size=best.shape), truth


def judged(
    best: np.ndarray, models: np.ndarray, asked: np.ndarray | None = None, gain: float = 0.1
) -> tuple[UsefulClusters, np.ndarray]:
    """Judge clients whose loss is the squared distance of a model from what is best for them."""
    tree = average_linkage(cosine_distances(models))
    losses = np.full((len(models), len(tree)), np.nan)
    for t, group in enumerate(groups_of_tree(tree)):
        for i in group:
            losses[i, t] = np.square(models[np.setdiff1d(group, [i])].mean(axis=0) - best[i]).sum()
    if asked is not None:
        losses[~asked] = np.nan
    return useful_clusters(tree, losses, models, gain=gain), tree


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(useful).failed == 0


@pytest.mark.parametrize("sizes", [[10, 10], [5, 5, 5, 5], [4] * 16, [42, 10, 6, 2], [70, 9, 6, 5, 4, 4, 2], [5] * 60])
@pytest.mark.parametrize("seed", range(3))
def test_planted_clusters_are_found_whatever_their_number_and_sizes(sizes: list[int], seed: int) -> None:
    best, models, truth = clients(sizes, seed=seed)
    found, _ = judged(best, models)
    assert (found.clusters, adjusted_rand_score(truth, found.assignment)) == (len(sizes), 1.0)
    assert found.best is not None and found.best.stands


@pytest.mark.parametrize("count", [4, 20, 100])
def test_clients_that_differ_a_little_are_one_cluster(count: int) -> None:
    found = [judged(*clients([count], seed=seed)[:2])[0].clusters for seed in range(20)]
    assert found == [1] * 20


def test_a_pull_to_the_centres_of_a_false_split_does_not_make_it_useful() -> None:
    for seed in range(10):
        best, models, _ = clients([40], seed=seed)
        false = np.arange(40) % 2
        for half in (0, 1):  # models move most of the way to the mean of their half
            models[false == half] += 0.9 * (models[false == half].mean(axis=0) - models[false == half])
        assert mean_silhouette(cosine_distances(models), false) > 0.3  # by the look of them they are two clusters
        found, _ = judged(best, models)
        assert found.clusters == 1


def test_true_clusters_that_were_pulled_together_are_split_again() -> None:
    best, models, truth = clients([20, 20])
    models += 0.8 * (models.mean(axis=0) - models)
    found, _ = judged(best, models)
    assert (found.clusters, adjusted_rand_score(truth, found.assignment)) == (2, 1.0)


def test_a_split_stands_by_the_t_tests_of_both_halves() -> None:
    """Four clients in two pairs. Gains 1, 2 and 2, 3: t = 3 and 5 with one degree of freedom."""
    tree = np.array([[0.0, 1, 0.1, 2], [2, 3, 0.1, 2], [4, 5, 1.0, 4]])
    losses = np.full((4, 3), np.nan)
    losses[:2, 0], losses[2:, 1], losses[:, 2] = 1.0, 2.0, [2.0, 3.0, 4.0, 5.0]
    found = useful_clusters(tree, losses, np.eye(4))
    (split,) = found.splits
    assert (split.sizes, split.gain) == ((2, 2), pytest.approx(8 / 14))
    expected = sum(scipy.stats.norm.isf(scipy.stats.t.sf(t, 1)) for t in (3.0, 5.0)) / np.sqrt(2)
    assert split.score == pytest.approx(expected)
    assert found.limit == pytest.approx(scipy.stats.norm.isf(0.01))
    assert split.stands == (expected > found.limit) and found.clusters == 1
    sure = useful_clusters(tree, losses, np.eye(4), level=0.05)
    assert sure.clusters == 2 and sure.assignment.tolist() == [0, 0, 1, 1]
    assert useful_clusters(tree, losses, np.eye(4), level=0.05, gain=0.6).clusters == 1


def test_where_most_of_the_loss_cannot_be_avoided_what_is_learnt_counts() -> None:
    """Gains 1, 2 and 2, 3 of losses near 100: much, where a model that has learnt nothing has a loss of 108."""
    tree = np.array([[0.0, 1, 0.1, 2], [2, 3, 0.1, 2], [4, 5, 1.0, 4]])
    losses = np.full((4, 3), np.nan)
    losses[:2, 0], losses[2:, 1], losses[:, 2] = 98.0, 98.0, [99.0, 100.0, 100.0, 101.0]
    found = useful_clusters(tree, losses, np.eye(4), level=0.05)
    assert (found.clusters, found.splits[0].gain) == (1, pytest.approx(8 / 400))
    learnt = useful_clusters(tree, losses, np.eye(4), initial=np.full(4, 108.0), level=0.05)
    assert (learnt.clusters, learnt.splits[0].gain) == (2, pytest.approx(8 / 40))
    nothing = useful_clusters(tree, losses, np.eye(4), initial=np.full(4, 98.0), level=0.05)
    assert nothing.clusters == 2 and nothing.splits[0].gain > 1  # all that is learnt is learnt in the halves


def test_a_half_that_loses_keeps_the_group_together() -> None:
    tree = np.array([[0.0, 1, 0.1, 2], [2, 3, 0.1, 2], [4, 5, 1.0, 4]])
    losses = np.full((4, 3), np.nan)
    losses[:2, 0], losses[2:, 1], losses[:, 2] = 1.0, 6.0, [100.0, 101.0, 5.9, 5.8]
    found = useful_clusters(tree, losses, np.eye(4), level=0.4)
    assert found.splits[0].gain > 0.9 and found.clusters == 1


def test_a_client_that_fits_nowhere_joins_the_nearest_cluster() -> None:
    best, models, _ = clients([8, 8])
    models = np.vstack([models, models[0] + 9.0 * np.eye(models.shape[1])[3]])
    best = np.vstack([best, best[0]])
    found, _ = judged(best, models)
    assert found.clusters == 2
    assert found.assignment[16] == found.assignment[0]


def test_clients_that_were_not_asked_are_in_clusters_too() -> None:
    best, models, truth = clients([20, 20, 20])
    asked = np.arange(60) % 4 == 0
    found, _ = judged(best, models, asked)
    assert (found.clusters, adjusted_rand_score(truth, found.assignment), found.asked) == (3, 1.0, 15)
    nobody, _ = judged(best, models, np.zeros(60, bool))
    assert (nobody.clusters, nobody.splits, nobody.best) == (1, (), None)


def test_the_numbers_of_clusters_that_the_evidence_supports_are_told() -> None:
    best, models, _ = clients([20, 20])
    found, _ = judged(best, models)
    assert found.supported == (2,)
    most = max(split.gain for split in found.splits)
    torn, _ = judged(best, models, gain=most * 0.75)
    assert torn.clusters == 2 and torn.supported == (1, 2)


def test_clusters_do_not_depend_on_how_clients_are_numbered() -> None:
    best, models, _ = clients([3, 7, 12])
    order = np.random.default_rng(5).permutation(22)
    plain, shuffled = judged(best, models)[0], judged(best[order], models[order])[0]
    assert adjusted_rand_score(plain.assignment[order], shuffled.assignment) == 1.0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_clients_are_one_cluster(count: int) -> None:
    _, models, _ = clients([1] * count)
    tree = average_linkage(cosine_distances(models)) if count > 1 else np.zeros((0, 4))
    losses = np.ones((count, count - 1))
    assert useful_clusters(tree, losses, models).assignment.tolist() == [0] * count


def test_groups_of_one_level_have_no_member_in_common() -> None:
    _, models, _ = clients([9, 14, 3])
    tree = average_linkage(cosine_distances(models))
    groups, levels = groups_of_tree(tree), levels_of_tree(tree)
    assert sorted(row for level in levels for row in level) == list(range(25))
    for level in levels:
        members = np.concatenate([groups[row] for row in level])
        assert len(np.unique(members)) == len(members)
