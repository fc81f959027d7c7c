"""SR-FCA's stages: RECLUSTER and MERGE by hand, and the paper's propositions on linear regression."""

from collections.abc import Callable

import numpy as np
import pytest

import rayfl.clustering.refinement
from rayfl.aggregation import trimmed_mean
from rayfl.clustering import (
    cluster_losses,
    components,
    losses_between_clusters,
    losses_to_clusters,
    merge_near_clusters,
    recluster,
    squared_distances,
)
from rayfl.config import load_config
from rayfl.errors import InputError, MethodError
from rayfl.federation import library
from rayfl.methods import method_options
from rayfl.simulation.server import Server

Make = Callable[..., Server]

SMALL = ["data.limit=480", "partition.clients=12", "local.steps=3", "local.lr=0.1", "rounds=8"]
SMALL += ["evaluate.every=1", "model.name=mlp", "model.options.hidden=16"]


@pytest.fixture
def small(serial_server: Make) -> Make:
    return lambda method, *overrides: serial_server(*SMALL, f"method.name={method}", *overrides)


def test_the_examples_in_the_docstrings_are_true() -> None:
    import doctest

    results = doctest.testmod(rayfl.clustering.refinement)
    assert results.failed == 0
    assert results.attempted >= 4


# -- RECLUSTER (Algorithm 2) -----------------------------------------------------------------------------------------


def test_recluster_goes_by_half_the_sum_of_both_losses_with_a_clusters_loss_the_plain_mean_over_its_clients() -> None:
    before = np.array([0, 0, 1])
    of_centres = np.array([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])  # f_i(w_c)
    of_clients = np.array([[0.1, 0.7, 0.4], [0.9, 0.3, 0.8], [0.6, 0.8, 0.0]])  # f_i(w_j)
    # Of the models of clients 0, 1, 2: f_0 = (0.1 + 0.9, 0.7 + 0.3, 0.4 + 0.8) / 2 and f_1 = (0.6, 0.8, 0.0).
    np.testing.assert_allclose(cluster_losses(of_clients, before, 2), [[0.5, 0.5, 0.6], [0.6, 0.8, 0.0]])
    distances = losses_to_clusters(of_centres, of_clients, before)
    np.testing.assert_allclose(distances, [[0.5, 0.55], [0.35, 0.8], [0.75, 0.05]])
    assert recluster(distances).tolist() == [0, 0, 1]
    # With client 1 having nine times the samples of client 0, a mean by samples would have f_0(w_0) = 0.82 and send
    # client 0 away: (0.5 + 0.82) / 2 = 0.66 > 0.55.
    by_samples = (of_centres[0, 0] + 0.1 * of_clients[0, 0] + 0.9 * of_clients[1, 0]) / 2
    assert by_samples == pytest.approx(0.66)


# -- MERGE (Algorithm 4) ---------------------------------------------------------------------------------------------

# Losses of two clusters' models on four clients. RECLUSTER has just moved client 2 from cluster 0 to cluster 1.
OF_CENTRES = np.array([[0.2, 1.0], [0.2, 1.0], [2.0, 0.2], [0.6, 0.2]])
BEFORE, AFTER = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])


def test_merge_goes_by_the_clusters_after_recluster_and_plain_means() -> None:
    between = losses_between_clusters(OF_CENTRES, AFTER)
    # f_0(w_1) = (1.0 + 1.0) / 2 and f_1(w_0) = (2.0 + 0.6) / 2: half of 1.0 + 1.3.
    np.testing.assert_allclose(between, [[0, 1.15], [1.15, 0]])
    clients, clusters = merge_near_clusters(AFTER, OF_CENTRES, between, threshold=1.0)
    assert (clients.tolist(), clusters.tolist()) == ([0, 0, 1, 1], [0, 1])

    # With the members before RECLUSTER the distance is half of 2.2 / 3 + 0.6, and the two would be one.
    old = losses_between_clusters(OF_CENTRES, BEFORE)
    assert old[0, 1] == pytest.approx((2.2 / 3 + 0.6) / 2)
    assert merge_near_clusters(AFTER, OF_CENTRES, old, threshold=1.0)[1].tolist() == [0, 0]
    # With means by samples (10, 10, 10, 30) it is half of 1.0 + 0.95, and they would be one as well.
    assert (1.0 + (10 * 2.0 + 30 * 0.6) / 40) / 2 < 1.0


def test_a_distance_of_exactly_the_threshold_merges_and_chains_count() -> None:
    between = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    clients, clusters = merge_near_clusters(np.array([2, 1, 0]), np.zeros((3, 3)), between, threshold=1.0)
    assert (clients.tolist(), clusters.tolist()) == ([0, 0, 0], [0, 0, 0])
    assert merge_near_clusters(np.array([2, 1, 0]), np.zeros((3, 3)), between, threshold=0.99)[1].tolist() == [0, 1, 2]


def test_a_cluster_that_lost_everybody_is_gone_and_joins_nothing_together() -> None:
    labels = np.array([0, 0, 2, 2])  # nobody is in cluster 1, whose model is near to both others
    between = losses_between_clusters(np.array([[0.1, 0.2, 3.0]] * 2 + [[3.0, 0.2, 0.1]] * 2), labels)
    assert np.isnan(between[0, 1])
    clients, clusters = merge_near_clusters(labels, np.zeros((4, 3)), between, threshold=1.0)
    assert (clients.tolist(), clusters.tolist()) == ([0, 0, 1, 1], [0, -1, 1])


def test_a_merged_cluster_of_fewer_clients_than_the_smallest_is_dissolved_and_exactly_that_many_stay() -> None:
    labels = np.array([0, 0, 1, 2, 3, 3, 3])
    between = np.full((4, 4), 9.0)
    np.fill_diagonal(between, 0.0)
    between[1, 2] = between[2, 1] = 1.0  # one client each: together they are two
    to_clusters = np.ones((7, 4))
    assert merge_near_clusters(labels, to_clusters, between, 2.0, smallest=2)[1].tolist() == [0, 1, 1, 2]
    to_clusters[2, 3] = to_clusters[3, 0] = 0.5
    to_clusters[0, 1] = 0.1  # near to a cluster that is dissolved: no reason to leave
    clients, clusters = merge_near_clusters(labels, to_clusters, between, 2.0, smallest=3)
    # Clusters 0 and 1 + 2 have two clients each, below three: all of them go to the only one that is left.
    assert (clients.tolist(), clusters.tolist()) == ([0] * 7, [-1, -1, -1, 0])
    between[1, 2] = between[2, 1] = 9.0
    clients, clusters = merge_near_clusters(labels, to_clusters, between, 2.0, smallest=2)
    assert (clients.tolist(), clusters.tolist()) == ([0, 0, 1, 0, 1, 1, 1], [0, -1, -1, 1])  # each its own way
    assert merge_near_clusters(labels, to_clusters, between, 2.0, smallest=8)[1].tolist() == [0, 1, 2, 3]  # none: all


# -- linear regression, where the paper's propositions apply ---------------------------------------------------------

CLUSTERS, PER_CLUSTER, D, NOISE = 3, 10, 5, 1.0
TRUTH = np.repeat(np.arange(CLUSTERS), PER_CLUSTER)


class Regression:
    """Clients whose data follow y = <w_i, x> + noise (Proposition 4.1), their w_i planted in clusters."""

    def __init__(self, n: int, seed: int, spread: float = 0.05) -> None:
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(CLUSTERS, D))
        centres *= 1.5 / np.linalg.norm(centres, axis=1, keepdims=True)
        self.optima = centres[TRUTH] + rng.uniform(-spread, spread, (len(TRUTH), D))  # w*_i
        apart, same = np.sqrt(squared_distances(self.optima)), TRUTH[:, None] == TRUTH
        self.eps1, self.eps2 = float(apart[same].max()), float(apart[~same].min())  # Definition 2.1
        self.x = rng.normal(size=(len(TRUTH), n, D))
        self.y = np.einsum("ind,id->in", self.x, self.optima) + NOISE * rng.normal(size=(len(TRUTH), n))
        self.local = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(self.x, self.y, strict=True)])

    @property
    def threshold(self) -> float:
        """The middle of (eps1, eps2), for which Lemma 4.6 has the least probability of error."""
        return (self.eps1 + self.eps2) / 2

    def one_shot(self, smallest: int = 2) -> np.ndarray:
        return components(np.sqrt(squared_distances(self.local)), self.threshold, smallest)

    def refine(self, labels: np.ndarray, beta: float, steps: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """TrimmedMeanGD (Algorithm 3) with full gradients, then RECLUSTER and MERGE with the L2 distance."""
        models = np.zeros((labels.max() + 1, D), np.float32)
        for _ in range(steps):
            for c in range(len(models)):
                x, y = self.x[labels == c], self.y[labels == c]
                gradients = np.einsum("ind,in->id", x, x @ models[c] - y) / x.shape[1]
                models[c] -= 0.1 * trimmed_mean(gradients.astype(np.float32), beta)
        distances = np.sqrt(squared_distances(np.vstack([self.local, models])))
        m = len(self.local)
        rows = recluster(distances[:m, m:])
        after, part_of = merge_near_clusters(rows, distances[:m, m:], distances[m:, m:], self.threshold, smallest=2)
        return after, np.stack([models[part_of == k].mean(axis=0) for k in range(part_of.max() + 1)])


def same_clusters(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def test_one_shot_recovers_planted_regressions_with_the_threshold_of_lemma_4_6_and_enough_samples() -> None:
    for seed in range(5):
        assert same_clusters(Regression(n=400, seed=seed).one_shot(), TRUTH)


def test_one_shot_errs_less_the_more_samples_there_are_as_in_lemma_4_6() -> None:
    wrong = [sum(not same_clusters(Regression(n, seed).one_shot(), TRUTH) for seed in range(20)) for n in (10, 30, 90)]
    assert wrong[0] > wrong[1] > wrong[2] == 0, wrong


def test_a_threshold_outside_remark_4_2_loses_the_clusters() -> None:
    problem = Regression(n=400, seed=0)
    distances = np.sqrt(squared_distances(problem.local))
    assert problem.eps1 < problem.threshold < problem.eps2
    assert len(np.unique(components(distances, 2 * problem.eps2))) < CLUSTERS
    assert len(np.unique(components(distances, problem.eps1 / 4))) > CLUSTERS


def test_refine_corrects_what_one_shot_got_wrong_as_in_theorem_4_8() -> None:
    """Each planted cluster keeps a proxy, and none has half its clients from elsewhere: the theorem's conditions."""
    for seed in range(5):
        problem = Regression(n=60, seed=seed)
        start = TRUTH.copy()
        start[[0, 1, 12, 21, 22]] = [1, 2, 0, 0, 1]  # impurities
        start[[26, 27, 28, 29]] = 3  # and one cluster in two pieces
        found, models = problem.refine(start, beta=0.3)
        assert same_clusters(found, TRUTH)
        # Theorem 4.14, one REFINE later: the cluster's model is nearer to its optimum than clients get alone.
        found, models = problem.refine(found, beta=0.1)
        assert same_clusters(found, TRUTH)
        best = np.stack([problem.optima[found == k].mean(axis=0) for k in range(CLUSTERS)])
        together = np.linalg.norm(models - best, axis=1).max()
        alone = np.linalg.norm(problem.local - best[found], axis=1).mean()
        assert together < alone / 2


def test_without_trimming_impurities_draw_a_clusters_model_away() -> None:
    """The same start by the plain mean: TrimmedMeanGD is what makes Theorem 4.8 hold."""
    problem = Regression(n=60, seed=0)
    start = TRUTH.copy()
    start[[0, 1, 2, 3]] = 1
    best = problem.optima[TRUTH == 1].mean(axis=0)
    off = {}
    for beta in (0.0, 0.35):
        _, models = problem.refine(start, beta)
        off[beta] = np.linalg.norm(models - best, axis=1).min()
    assert off[0.35] < off[0.0] / 2


# -- the method ------------------------------------------------------------------------------------------------------


def test_extras_name_the_stage_and_what_merge_did(small: Make) -> None:
    server = small("sr_fca", "method.one_shot_rounds=2", "method.refine_rounds=2", "method.refinements=2")
    records = [server.run_round(number) for number in range(1, 9)]
    stages = [(r.extras["stage"], r.extras["refinement"]) for r in records]
    assert stages == [
        ("one_shot", 0),
        ("one_shot", 0),
        ("refine", 1),
        ("merge", 1),
        ("refine", 2),
        ("merge", 2),
        ("train", 2),
        ("train", 2),
    ]
    for record in records:
        assert ("clusters_after_merge" in record.extras) == (record.extras["stage"] == "merge")
    first = records[3]
    assert first.extras["clusters_before_recluster"] == records[2].summary["clusters"]
    assert first.extras["clusters_after_merge"] == first.summary["clusters"] <= first.extras["clusters_before_merge"]
    assert first.extras["moved"] >= 0


def test_after_one_shot_clients_are_still_tested_with_their_own_models(small: Make) -> None:
    """As in Table 4: ONE_SHOT gives clusters, not models of them."""
    alone, clustered = small("local"), small("sr_fca", "method.one_shot_rounds=2")
    for number in (1, 2):
        expected, found = alone.run_round(number), clustered.run_round(number)
    assert found.summary["clusters"] >= 1
    assert np.array_equal(found.clients["accuracy"], expected.clients["accuracy"])


def test_by_l2_nobody_is_asked_for_losses(small: Make) -> None:
    options = ["method.one_shot_rounds=1", "method.refine_rounds=1", "method.refinements=1", "method.distance=l2"]
    server = small("sr_fca", *options)
    record = server.run_round(1)
    size = server.fed.layout.size * 4
    assert (record.summary["bytes_down"], record.summary["bytes_up"]) == (0, 12 * size)
    record = server.run_round(2)
    assert record.extras["stage"] == "merge"
    assert record.summary["bytes_down"] == 12 * size  # a start for each, and no models to weigh


def test_one_shot_ifca_can_begin_with_fresh_models_in_the_clusters_of_one_shot(small: Make) -> None:
    server = small("oneshot_ifca", "method.one_shot_rounds=2", "method.begin=fresh", "method.smallest=1")
    server.run_round(1), server.run_round(2)
    clusters = server.method.assignment()
    assert clusters is not None
    clusters = clusters.copy()
    assert len(np.unique(clusters)) > 1
    starts = server.fed.initial_models(clusters.max() + 1, first=2)  # number 1 is CAM's
    assert not np.array_equal(library.losses(server.fed, np.arange(12), starts).argmin(axis=1), clusters)
    server.run_round(3)
    assert np.array_equal(server.method.assignment(), clusters)  # trained in these for one round
    centres = server.method.state.centres
    apart = np.linalg.norm(centres[:, None] - starts, axis=2)
    assert (apart.diagonal() > 0).all()
    assert np.array_equal(apart.argmin(axis=1), np.arange(len(starts)))  # each from its own fresh model


def test_models_that_do_not_fit_side_by_side_are_refused_before_anyone_trains(
    small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, module in (("sr_fca", "sr_fca"), ("local_kmeans", "local_kmeans")):
        server = small(method)
        monkeypatch.setattr(f"rayfl.methods.{module}.memory_here", lambda: 10_000)
        with pytest.raises((InputError, MethodError), match=r"the models of 12 clients.*lower partition\.clients"):
            server.run_round(1)
        assert server.fed.ledger.bytes_up == 0
        assert not server.fed.has_model(np.arange(12)).any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.name=cfl", "method.clusters=2", "method.gamma_max=0.5"], r"method\.gamma_max=0\.5 would do nothing"),
        (
            ["method.name=local_kmeans", "method.variant=sr_fca", "method.addons=[cks]"],
            r"set method\.variant=federated",
        ),
        (["method.name=fedsoft", "method.start=centre"], r"method\.start"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        method_options(load_config(None, words).method)
