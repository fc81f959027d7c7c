"""Rules for the number of clusters, as pure functions on sketches: each takes points and returns a Judgement.

All rules except `density` choose among the cuts of one average-linkage tree of cosine distances, so they differ only
in the number of clusters. Cosines are measured from zero: subtract a common origin first. If there are two independent
sketches of each client (from two streams of batches), the tree is built from their mean, and `stability` and
`agreement` compare the two sketches. Each rule can answer "one cluster".
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayfl.clustering.cuts import (
    Labels,
    average_linkage,
    cloud_like,
    cut,
    in_order_of_first,
    silhouettes,
)
from rayfl.clustering.gram import Floats
from rayfl.clustering.similarity import cosine_distances, unit

#: How often a rule may find clusters where there are none.
LEVEL = 0.05


@dataclass(frozen=True)
class Judgement:
    """A clustering, and the evidence for its number of clusters.

    `scores` and `null` have one entry per number of clusters in `counts`: its score, and the level that the score has
    to exceed. `supported` lists the numbers that the rule accepts; the chosen number is one of them, or 1.
    """

    assignment: Labels
    counts: tuple[int, ...]
    scores: Floats
    null: Floats
    supported: tuple[int, ...]

    @property
    def clusters(self) -> int:
        """The number of clusters that was chosen."""
        return int(self.assignment.max(initial=-1)) + 1

    @property
    def at_the_limit(self) -> bool:
        """Whether the chosen number is the greatest that was tried, so that there may be more."""
        return bool(self.counts) and self.clusters == self.counts[-1]


@dataclass(frozen=True)
class Evidence:
    """What the rules look at: the sketches of clients, the most clusters to try, and random numbers."""

    points: Floats  # (n, D)
    rng: np.random.Generator
    most: int  # the greatest number of clusters to try
    streams: tuple[Floats, Floats] | None = None  # two independent sketches of each client; `points` is their mean

    @property
    def counts(self) -> list[int]:
        """The numbers of clusters to compare: all, since cuts into nearly the right number differ between sketches."""
        return list(range(2, self.most + 1))

    def judged(self, counts: list[int], scores: Floats, null: Floats, supported: list[int], chosen: int) -> Judgement:
        """Return the judgement that there are `chosen` clusters."""
        labels = np.zeros(len(self.points), np.int64)
        if chosen > 1:
            labels = cut(average_linkage(cosine_distances(self.points)), chosen)
        return Judgement(labels, tuple(counts), scores, null, tuple(supported))

    def undecided(self) -> Judgement:
        """Return the judgement if the points do not allow a decision: one cluster."""
        return self.judged([], np.zeros(0), np.zeros(0), [], 1)


def silhouette_against_null(evidence: Evidence, draws: int = 39) -> Judgement:
    """Choose the number of clusters with the highest silhouette, among those whose silhouette is too high for chance.

    For each number, the silhouette is compared, as a z-score, with the silhouettes of `draws` clouds of the same mean
    and covariance that have no clusters. The limit is the same for all numbers: one cloud in twenty exceeds it with
    its greatest z-score over all numbers. So data without clusters give clusters in one case of twenty, however many
    numbers are tried.
    """
    counts = evidence.counts
    if not counts:
        return evidence.undecided()

    def curve(points: Floats) -> Floats:
        distances = cosine_distances(points)
        return silhouettes(distances, average_linkage(distances), counts)

    scores = curve(evidence.points)
    clouds = np.stack([curve(cloud_like(evidence.points, evidence.rng)) for _ in range(draws)])
    middle, width = clouds.mean(axis=0), np.maximum(clouds.std(axis=0, ddof=1), 1e-6)
    limit = _upper(((clouds - middle) / width).max(axis=1))
    null = middle + limit * width
    supported = [k for k, score, bound in zip(counts, scores, null, strict=True) if score > bound]
    chosen = max(supported, key=lambda k: scores[counts.index(k)], default=1)
    return evidence.judged(counts, scores, null, supported, chosen)


def gap(evidence: Evidence, draws: int = 39) -> Judgement:
    """Choose by the gap statistic (Tibshirani, Walther and Hastie 2001), against clouds of the same covariance.

    The score is the gap: how much smaller the logarithm of the spread inside clusters is than for the clouds. The
    smallest number wins whose gap is at least the gap of the next number minus the standard error of that gap.
    """
    counts = [1, *evidence.counts]
    if len(counts) < 2:
        return evidence.undecided()

    def curve(points: Floats) -> Floats:
        distances = cosine_distances(points)
        tree = average_linkage(distances)
        return np.array([np.log(_spread(distances, cut(tree, k)) + 1e-12) for k in counts])

    clouds = np.stack([curve(cloud_like(evidence.points, evidence.rng)) for _ in range(draws)])
    gaps = clouds.mean(axis=0) - curve(evidence.points)
    error = clouds.std(axis=0) * np.sqrt(1 + 1 / draws)
    enough = [i for i in range(len(counts) - 1) if gaps[i] >= gaps[i + 1] - error[i + 1]]
    chosen = counts[enough[0]] if enough else counts[-1]
    supported = [k for k, g, e in zip(counts[1:], gaps[1:], error[1:], strict=True) if g - e > gaps[0]]
    return evidence.judged(counts[1:], gaps[1:], gaps[0] + error[1:], supported, chosen if chosen in supported else 1)


def stability(evidence: Evidence, strength: float = 0.8) -> Judgement:
    """Choose the greatest number of clusters that two independent sketches of the clients agree on.

    The score is the prediction strength of Tibshirani and Walther (2005): of the pairs of clients in a cluster of one
    stream, the share that is in one cluster of the other stream too. The worst cluster counts, and the worse of both
    directions. Small differences between clients also appear in both streams, so this finds what repeats, not what
    helps.
    """
    counts = evidence.counts
    if evidence.streams is None:
        raise ValueError("stability needs two independent sketches of each client: give both streams")
    if not counts:
        return evidence.undecided()
    trees = [average_linkage(cosine_distances(points)) for points in evidence.streams]
    cuts = [[cut(tree, k) for tree in trees] for k in counts]
    scores = np.array([min(_kept_together(a, b), _kept_together(b, a)) for a, b in cuts])
    supported = [k for k, score in zip(counts, scores, strict=True) if score >= strength]
    return evidence.judged(counts, scores, np.full(len(counts), strength), supported, supported[-1] if supported else 1)


def agreement(evidence: Evidence, draws: int = 39, strength: float = 0.8) -> Judgement:
    """Choose the highest silhouette among the numbers of clusters that both a null and a second sketch support.

    Clusters must be clearer than those of clouds without clusters (`silhouette_against_null`) *and* appear again in an
    independent sketch of the same clients (`stability`). Alone, the first rule takes small real differences between
    clients for many clusters, since clients are not a Gaussian cloud; the second takes anything that repeats for a
    cluster.
    """
    if evidence.streams is None:
        raise ValueError("agreement needs two independent sketches of each client: give both streams")
    clear, repeated = silhouette_against_null(evidence, draws), stability(evidence, strength)
    supported = sorted({*clear.supported} & {*repeated.supported})
    chosen = max(supported, key=lambda k: clear.scores[clear.counts.index(k)], default=1)
    return evidence.judged(list(clear.counts), clear.scores, clear.null, supported, chosen)


def density(evidence: Evidence, least: int = 2) -> Judgement:
    """Take HDBSCAN's clusters of cosine distances (Campello et al. 2013); a noise row joins the nearest cluster."""
    from sklearn.cluster import HDBSCAN  # takes half a second to import

    if evidence.most < 2:
        return evidence.undecided()
    distances = cosine_distances(evidence.points)
    found = HDBSCAN(min_cluster_size=least, metric="precomputed", copy=True).fit(distances).labels_
    if found.max() < 0:
        return evidence.undecided()
    groups = [np.flatnonzero(found == k) for k in range(found.max() + 1)]
    noise = np.flatnonzero(found < 0)
    found[noise] = np.stack([distances[np.ix_(noise, group)].mean(axis=1) for group in groups]).argmin(axis=0)
    labels = in_order_of_first(found)
    return Judgement(labels, (), np.zeros(0), np.zeros(0), (len(groups),))  # it tries no numbers, so it has no limit


def bic(evidence: Evidence) -> Judgement:
    """Choose by the Bayesian information criterion of spherical Gaussians (X-means, Pelleg and Moore 2000).

    The score of a cut of the directions is how much better its criterion is than that of one cluster; it must be above
    0.
    """
    counts = [1, *evidence.counts]
    if len(counts) < 2:
        return evidence.undecided()
    directions = unit(evidence.points)
    rows, dimensions = directions.shape
    tree = average_linkage(cosine_distances(evidence.points))

    def criterion(labels: Labels) -> float:
        clusters, sizes = int(labels.max()) + 1, np.bincount(labels)
        means = np.stack([directions[labels == k].mean(axis=0) for k in range(clusters)])
        variance = np.square(directions - means[labels]).sum() / (dimensions * max(rows - clusters, 1)) + 1e-12
        likelihood = (
            (sizes * np.log(sizes / rows)).sum()
            - rows * dimensions / 2 * np.log(2 * np.pi * variance)
            - dimensions * (rows - clusters) / 2
        )
        return float(likelihood - (clusters * (dimensions + 1)) / 2 * np.log(rows))

    found = np.array([criterion(cut(tree, k)) for k in counts])
    scores = found[1:] - found[0]
    supported = [k for k, score in zip(counts[1:], scores, strict=True) if score > 0]
    chosen = max(supported, key=lambda k: scores[k - 2], default=1)
    return evidence.judged(counts[1:], scores, np.zeros(len(scores)), supported, chosen)


def eigengap(evidence: Evidence, draws: int = 39) -> Judgement:
    """Choose the widest gap in the spectrum of the normalised affinities (Ng, Jordan and Weiss 2001), against a null.

    The score of K is the gap behind the K-th eigenvalue. As in parallel analysis, it must be above a level that one in
    twenty clouds of the same covariance exceeds with its widest gap. (The eigenvalues of the covariance itself cannot
    be compared with a null here: sketches are in principal components.)
    """
    counts = evidence.counts
    if not counts:
        return evidence.undecided()

    def gaps(points: Floats) -> Floats:
        affinity = np.exp(-cosine_distances(points))
        degrees = 1.0 / np.sqrt(affinity.sum(axis=1))
        values = np.linalg.eigvalsh(degrees[:, None] * affinity * degrees)[::-1]
        return -np.diff(values)[1 : counts[-1]]

    scores = gaps(evidence.points)
    limit = _upper(np.array([gaps(cloud_like(evidence.points, evidence.rng)).max() for _ in range(draws)]))
    supported = [k for k, score in zip(counts, scores, strict=True) if score > limit]
    chosen = max(supported, key=lambda k: scores[counts.index(k)], default=1)
    return evidence.judged(counts, scores, np.full(len(counts), limit), supported, chosen)


RULES: dict[str, Callable[[Evidence], Judgement]] = {
    "silhouette": silhouette_against_null,
    "gap": gap,
    "stability": stability,
    "agreement": agreement,
    "density": density,
    "bic": bic,
    "eigengap": eigengap,
}


def _upper(values: Floats) -> float:
    """The value that one in twenty of the given values exceeds, if one infinite value is added to them."""
    rank = int(np.ceil((1 - LEVEL) * (len(values) + 1)))
    return float(np.sort(values)[min(rank, len(values)) - 1])


def _spread(distances: Floats, labels: Labels) -> float:
    """The sum over clusters of the distances between all ordered pairs of members, divided by the number of members."""
    same = labels[:, None] == labels[None]
    sizes = np.bincount(labels)[labels]
    return float((distances * same / sizes[:, None]).sum())


def _kept_together(clusters: Labels, other: Labels) -> float:
    """The share of the pairs in one of `clusters` that is together in `other` too: the lowest share of all clusters."""
    shares = []
    for k in range(int(clusters.max()) + 1):
        sizes = np.bincount(other[clusters == k])
        pairs = sizes.sum() * (sizes.sum() - 1)
        shares.append(float((sizes * (sizes - 1)).sum() / pairs) if pairs else 0.0)
    return min(shares)
