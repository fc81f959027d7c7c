import doctest

import numpy as np
import pytest
from sklearn.decomposition import PCA

from rayfl.clustering import (
    LowRankMap,
    cosine,
    cosine_distances,
    fit_low_rank,
    gram,
    l2_distances,
    project,
    project_all,
    similarity,
)


def models(rows: int = 6, dim: int = 20_000, seed: int = 0) -> np.ndarray:
    """Client models as they are: a common part, far larger than what tells clients apart."""
    rng = np.random.default_rng(seed)
    return (rng.normal(0, 1, dim) + rng.normal(0, 0.05, (rows, dim))).astype(np.float32)


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(similarity).failed == 0
    assert doctest.testmod(gram).failed == 0


def test_components_are_orthonormal_and_one_fewer_than_the_rows():
    fitted = fit_low_rank(models(rows=6), components=50)
    assert fitted.components.shape == (5, 20_000)
    assert fitted.components.dtype == fitted.mean.dtype == np.float32
    gram = fitted.components.astype(float) @ fitted.components.T
    np.testing.assert_allclose(gram, np.eye(5), atol=1e-5)


def test_components_are_those_of_a_singular_value_decomposition():
    vectors = models(rows=8, dim=9_000)
    fitted = fit_low_rank(vectors, components=3)
    exact = np.linalg.svd(vectors.astype(float) - vectors.mean(axis=0, dtype=float), full_matrices=False)[2][:3]
    np.testing.assert_allclose(np.abs(np.sum(exact * fitted.components, axis=1)), 1.0, atol=1e-5)
    np.testing.assert_allclose(fitted.mean, vectors.mean(axis=0, dtype=float), rtol=1e-6)


def test_components_are_those_of_scikit_learns_pca():
    vectors = models(rows=9, dim=5_000)
    fitted = fit_low_rank(vectors, components=4)
    reference = PCA(n_components=4, svd_solver="full").fit(vectors.astype(float))
    signs = np.sign(np.sum(reference.components_ * fitted.components, axis=1))
    np.testing.assert_allclose(fitted.components, signs[:, None] * reference.components_, atol=1e-5)
    sketches = project_all(fitted, list(vectors), fitted.mean)
    np.testing.assert_allclose(sketches, signs * reference.transform(vectors.astype(float)), atol=1e-3)


def test_all_components_keep_the_distances_between_the_fitted_models():
    vectors = models()
    sketches = project_all(fit_low_rank(vectors, 50), list(vectors), vectors[0])
    np.testing.assert_allclose(l2_distances(sketches), l2_distances(vectors.astype(float)), rtol=1e-4)


def test_directions_in_which_nobody_differs_are_left_out():
    two_kinds = models(rows=2)[[0, 1, 0, 1, 1]]
    assert len(fit_low_rank(two_kinds, 50).components) == 1
    assert len(fit_low_rank(two_kinds[[0, 0, 0]], 50).components) == 0
    assert len(fit_low_rank(two_kinds[:1], 50).components) == 0


def test_a_fit_gives_the_same_bits_twice_whatever_the_memory_layout():
    vectors = models()
    a, b = fit_low_rank(vectors, 4), fit_low_rank(np.asfortranarray(vectors), 4)
    np.testing.assert_array_equal(a.components, b.components)
    np.testing.assert_array_equal(a.mean, b.mean)


def test_a_map_without_components_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        fit_low_rank(models(), components=0)


def test_a_client_gets_the_same_bits_alone_as_among_others():
    vectors = models(rows=7, dim=50_001)
    fitted = fit_low_rank(vectors, 50)
    together = project_all(fitted, list(vectors), vectors[0])
    for vector, sketch in zip(vectors, together, strict=True):
        np.testing.assert_array_equal(project(fitted, vector, vectors[0]), sketch)
    np.testing.assert_array_equal(project_all(fitted, list(vectors[[5, 2]]), vectors[0]), together[[5, 2]])


def test_where_a_vector_lies_in_memory_leaves_no_trace():
    vectors = models(rows=3, dim=20_003)
    fitted = fit_low_rank(vectors, 2)
    for shift in range(1, 16):
        moved = np.empty(20_003 + shift, np.float32)[shift:]
        moved[:] = vectors[1]
        np.testing.assert_array_equal(project(fitted, moved, fitted.mean), project(fitted, vectors[1], fitted.mean))


def test_a_sketch_is_the_product_with_the_difference_from_the_origin():
    vectors = models()
    fitted = fit_low_rank(vectors, 3)
    expected = (vectors.astype(float) - vectors[0]) @ fitted.components.T.astype(float)
    np.testing.assert_allclose(project_all(fitted, list(vectors), vectors[0]), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(project_all(fitted, list(vectors), fitted.mean).mean(axis=0), 0.0, atol=1e-4)


def test_projection_needs_no_components_at_all():
    empty = LowRankMap(np.zeros(5, np.float32), np.zeros((0, 5), np.float32))
    assert project(empty, np.ones(5, np.float32), empty.mean).shape == (0,)


def test_cosine_ignores_length_and_gives_zero_for_zero_vectors():
    a = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosine(a, np.array([[30.0, 40.0], [-4.0, 3.0]])), [[1, 0], [0, 0]], atol=1e-15)


def test_cosine_distances_are_symmetric_to_the_bit_and_zero_on_the_diagonal():
    sketches = np.random.default_rng(0).normal(size=(40, 7))
    sketches[3] = 0
    distances = cosine_distances(sketches)
    np.testing.assert_array_equal(distances, distances.T)
    assert not np.diag(distances).any()
    assert distances.min() >= 0 and distances.max() <= 2
    np.testing.assert_array_equal(np.delete(distances[3], 3), 1.0)
