import doctest

import numpy as np
import pytest

from rayfl.clustering import clusterability, hopkins


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Drawn:
    """A generator whose draws are known."""

    def choice(self, count, draws, replace):
        assert (count, draws, replace) == (4, 2, False)
        return np.array([0, 2])

    def uniform(self, low, high, shape):
        assert (low.tolist(), high.tolist(), shape) == ([0.0], [10.0], (2, 1))
        return np.array([[1.0], [6.0]])


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(clusterability).failed == 0


def test_hopkins_is_the_number_worked_out_by_hand():
    points = np.array([[0.0], [3.0], [4.0], [10.0]])
    # Places 1 and 6 are 1 and 2 from the nearest row; rows 0 and 4 are 3 and 1 from the nearest other.
    assert hopkins(points, Drawn(), sample=2) == pytest.approx((1 + 2) / (1 + 2 + 3 + 1))


@pytest.mark.parametrize(("clients", "numbers"), [(20, 2), (20, 640), (100, 10), (500, 3)])
def test_uniform_points_are_near_one_half(clients, numbers):
    values = [hopkins(rng(seed).uniform(-3, 5, (clients, numbers)), rng(seed + 1000)) for seed in range(30)]
    assert np.mean(values) == pytest.approx(0.5, abs=0.06)


def test_clusters_are_above_the_papers_threshold_and_tight_ones_near_one():
    for seed in range(10):
        centres = rng(seed).uniform(size=(4, 100))[np.arange(20) % 4]
        assert hopkins(centres + rng(seed).normal(0, 0.05, (20, 100)), rng(seed)) > 0.65
        assert hopkins(centres + rng(seed).normal(0, 1e-4, (20, 100)), rng(seed)) > 0.99


def test_the_default_sample_makes_false_alarms_rare_for_twenty_clients():
    def alarms(sample):
        return np.mean([hopkins(rng(s).uniform(size=(20, 2)), rng(s + 1000), sample) > 0.65 for s in range(300)])

    assert alarms(None) < 0.04
    assert alarms(20 // 10) > 0.08


def test_equal_points_and_a_point_alone_tell_nothing():
    assert hopkins(np.ones((8, 3)), rng()) == 0.5
    assert hopkins(np.ones((1, 3)), rng()) == 0.5


def test_a_client_is_not_its_own_neighbour_but_an_equal_one_is():
    assert hopkins(np.array([[0.0], [1.0]]), rng()) < 1 / 3 + 1e-12  # v is 1 for both, z at most one half
    assert hopkins(np.array([[0.0], [0.0], [1.0], [1.0]]), rng()) == 1.0


def test_the_unit_of_the_points_does_not_matter_and_the_generator_decides():
    points = rng(1).normal(size=(30, 5)).astype(np.float32)
    assert hopkins(points * 1024, rng()) == pytest.approx(hopkins(points, rng()))
    assert hopkins(points, rng(2)) == hopkins(points, rng(2)) != hopkins(points, rng(3))


def test_a_sample_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="number of rows, 4"):
        hopkins(np.eye(4), rng(), sample=5)
    with pytest.raises(ValueError, match="sample is 0"):
        hopkins(np.eye(4), rng(), sample=0)
