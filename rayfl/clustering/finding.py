"""Find the clusters of any array of points: how many there are, and which points belong to each."""

import numpy as np

from rayfl.clustering.cuts import in_order_of_first
from rayfl.clustering.gram import Floats
from rayfl.clustering.rules import RULES, Evidence, Judgement
from rayfl.clustering.similarity import unit

#: With more points than this, clusters are found in a sample of this size; the other points join the nearest cluster.
SAMPLE = 500


def find_clusters(
    points: Floats,
    second: Floats | None = None,
    *,
    rule: str | None = None,
    most: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Judgement:
    """Return the clusters of the rows of `points` (n, D), compared by cosine, and the evidence for their number.

    `second` is an independent sketch of the same rows, for example of models that clients trained on other batches.
    With `second`, the default rule is `agreement`: clusters must be clearer than those of a Gaussian cloud of the same
    covariance, and appear in the second sketch too. Without `second`, the default rule is `silhouette`, which only
    compares with the cloud; clients that are all a little different can then look like many clusters.

    Assumptions: directions matter and lengths do not, so subtract a common origin first. A cluster has two rows or
    more, so there are at most n / 2 clusters, or `most`. With more than `sample` rows, only clusters with rows in the
    sample are found.

    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.eye(3, 8), 6, axis=0)
    >>> one, other = (truth + rng.normal(0, 0.1, truth.shape) for _ in range(2))
    >>> found = find_clusters(one, other)
    >>> found.clusters, found.assignment.tolist()
    (3, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    """
    points = _checked(points, "points")
    if second is not None and _checked(second, "second").shape != points.shape:
        raise ValueError(f"second has the shape {second.shape} and points {points.shape}; give the same rows twice")
    rule = rule or ("silhouette" if second is None else "agreement")
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is not known; use one of {', '.join(RULES)}")
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.choice(len(points), sample, replace=False)) if len(points) > sample else np.arange(len(points))
    streams = None if second is None else (points[drawn], second[drawn])
    mean = points if second is None else (points + second) / 2
    limit = len(drawn) // 2 if most is None else min(most, len(drawn) // 2)
    found = RULES[rule](Evidence(mean[drawn], rng, limit, streams))
    if len(drawn) == len(points):
        return found
    centres = np.stack([unit(mean[drawn[found.assignment == k]]).mean(axis=0) for k in range(found.clusters)])
    assignment = (unit(mean) @ centres.T).argmax(axis=1)
    assignment[drawn] = found.assignment
    return Judgement(in_order_of_first(assignment), found.counts, found.scores, found.null, found.supported)


def _checked(points: Floats, name: str) -> Floats:
    if points.ndim != 2 or not len(points) or not np.isfinite(points).all():
        raise ValueError(f"{name} has the shape {points.shape}; give finite numbers, a row for each client")
    return points
