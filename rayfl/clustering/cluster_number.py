"""FedAC's granularity rule for the number of clusters (section 4.5, Algorithm 3), and stable cluster numbers.

The rule turns one assignment of clients into the next; the caller then recomputes the centres. An assignment holds the
number of each client's cluster, or NO_CLUSTER if the client never took part. A cluster that continues to exist keeps
its number. The rule that FedAC uses by default is in `useful`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from rayfl.clustering.cuts import Labels
from rayfl.clustering.similarity import Floats, cosine_distances, l2_distances

NO_CLUSTER = -1

#: Which distance goes into G_c: the plain L2 norm, or its square as Algorithm 3 prints it.
GranularityNorm = Literal["l2", "squared"]


# -- the paper's rule --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decisions:
    """The changes that the granularity rule makes, by cluster position: cluster k is merged into `merges[k]`."""

    merges: dict[int, int]
    splits: tuple[int, ...]


def granularity(intra: Floats, centre_distances: Floats) -> Floats:
    """Return G_c of each cluster (Algorithm 3, lines 2 to 4): its spread divided by its distance from the others.

    `intra` (K,) holds the distances of the members from their centre, `centre_distances` (K, K) the distances between
    the centres, both in the same norm. G_c is 0 for a cluster without spread, and NaN (undefined) for K = 1.

    >>> granularity(np.array([1.0, 0.0, 4.0]), np.array([[0.0, 4, 4], [4, 0, 16], [4, 16, 0]])).tolist()
    [0.25, 0.0, 0.4]
    """
    if len(intra) == 1:
        return np.full(1, np.nan)
    inter = centre_distances.sum(axis=1) / (len(intra) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(intra == 0, 0.0, intra / inter)


def in_norm(squared: Floats, norm: GranularityNorm) -> Floats:
    """Convert squared distances to a norm; for a mean of squares, l2 gives the root mean square.

    >>> in_norm(np.array([4.0, 9.0]), "l2").tolist(), in_norm(np.array([4.0]), "squared").tolist()
    ([2.0, 3.0], [4.0])
    """
    return np.sqrt(squared) if norm == "l2" else squared


def granularity_decisions(intra: Floats, centre_distances: Floats, lower: float = 0.2, upper: float = 0.8) -> Decisions:
    """Decide which of two or more clusters merge and which split, without recomputing G_c in between.

    Clusters are judged in order of position: with G_c below `lower` a cluster is merged into the one with the nearest
    centre, above `upper` it splits. A cluster takes part in at most one change per call; if its nearest cluster has
    already changed, it is left until the next call.

    >>> granularity_decisions(np.array([0.1, 3.0, 9.0]), np.array([[0.0, 4, 8], [4, 0, 8], [8, 8, 0]]))
    Decisions(merges={0: 1}, splits=(2,))
    """
    apart = centre_distances + np.diag(np.full(len(intra), np.inf))
    merges: dict[int, int] = {}
    splits: list[int] = []
    changed: set[int] = set()
    for cluster, value in enumerate(granularity(intra, centre_distances)):
        nearest = int(apart[cluster].argmin())
        if cluster in changed or (value < lower and nearest in changed):
            continue
        if value < lower:
            merges[cluster] = nearest
            changed |= {cluster, nearest}
        elif value > upper:
            splits.append(cluster)
            changed.add(cluster)
    return Decisions(merges, tuple(splits))


def split_in_two(points: Floats) -> Labels:
    """Split rows in two: the two rows with the largest cosine distance are the centres, the others join the nearer one.

    These are the paper's two new centres and its one iteration of re-clustering, by cosine. The half with
    more rows is 0, the other 1 (at a tie, 0 is the half with the first row). If all rows have the same direction, they
    are not split: all are 0.

    >>> split_in_two(np.array([[1.0, 0.1], [0.0, 1.0], [2.0, 0.0], [0.1, 3.0], [0.0, 2.0]])).tolist()
    [1, 0, 1, 0, 0]
    """
    distances = cosine_distances(points)
    one, other = np.unravel_index(distances.argmax(), distances.shape)
    second = (distances[:, other] < distances[:, one]).astype(np.int64)
    if second.sum() * 2 > len(points) or (second.sum() * 2 == len(points) and second[0]):
        second = 1 - second
    return second if distances[one, other] > 1e-12 else np.zeros(len(points), np.int64)


def tune_by_granularity(
    assignment: Labels,
    clusters: Labels,
    intra: Floats,
    centre_distances: Floats,
    sketches: Floats,
    lower: float = 0.2,
    upper: float = 0.8,
    fresh: int | None = None,
    norm: GranularityNorm = "l2",
) -> Labels:
    """Return the assignment after one cluster number tuning by the paper's rule.

    `clusters` (K,) are the cluster numbers that `intra` and `centre_distances` belong to; splits use the `sketches`
    (m, D). Empty clusters are removed and count in no average. After a split, the larger half keeps the number, the
    other gets a new one, from `fresh` on (by default, one above all of `clusters`). For K = 1, G_c is undefined: the
    cluster splits if both halves would then be stable, that is, have G_c inside [lower, upper], computed on the
    sketches in the same `norm` as the given distances.

    >>> points = np.array([[1.0, 0.0], [1.1, 0.0], [0.0, 1.0], [0.0, 1.1]])
    >>> assignment, clusters = np.array([0, 0, 1, 1]), np.array([0, 1])
    >>> intra, apart = np.array([0.05, 0.05]), np.array([[0.0, 1.48], [1.48, 0.0]])
    >>> tune_by_granularity(assignment, clusters, intra, apart, points).tolist()
    [1, 1, 1, 1]
    """
    fresh = int(clusters.max(initial=-1)) + 1 if fresh is None else fresh
    alive = np.isin(clusters, assignment)
    clusters, intra, centre_distances = clusters[alive], intra[alive], centre_distances[np.ix_(alive, alive)]
    tuned = assignment.copy()
    if len(clusters) == 0:
        return tuned
    if len(clusters) == 1:
        members = np.flatnonzero(assignment == clusters[0])
        if _halves_stand(sketches[members], lower, upper, norm):
            tuned[members[split_in_two(sketches[members]) == 1]] = fresh
        return tuned
    decisions = granularity_decisions(intra, centre_distances, lower, upper)
    for cluster, into in decisions.merges.items():
        tuned[assignment == clusters[cluster]] = clusters[into]
    for cluster in decisions.splits:
        members = np.flatnonzero(assignment == clusters[cluster])
        second = members[split_in_two(sketches[members]) == 1]
        tuned[second] = fresh
        fresh += int(len(second) > 0)
    return tuned


def _halves_stand(points: Floats, lower: float, upper: float, norm: GranularityNorm) -> bool:
    halves = split_in_two(points)
    if not halves.any():
        return False
    centres = np.stack([points[halves == half].mean(axis=0) for half in (0, 1)])
    spread = np.square(points - centres[halves]).sum(axis=1)
    intra = np.array([spread[halves == half].mean() for half in (0, 1)])
    values = granularity(in_norm(intra, norm), in_norm(l2_distances(centres, squared=True), norm))
    return bool(np.all((values >= lower) & (values <= upper)))


def match_labels(previous: Labels, found: Labels, fresh: int | None = None) -> Labels:
    """Renumber the clusters of `found` so that as many clients as possible keep their cluster number of `previous`.

    The Hungarian method pairs old and new clusters; new clusters without a partner are numbered from `fresh` on
    (by default, one above all old numbers).

    >>> match_labels(np.array([5, 5, 5, 2, 2, -1]), np.array([0, 0, 1, 2, 2, 2])).tolist()
    [5, 5, 6, 2, 2, 2]
    """
    fresh = int(previous.max(initial=NO_CLUSTER)) + 1 if fresh is None else fresh
    old = np.unique(previous[previous != NO_CLUSTER])
    new = np.unique(found[found != NO_CLUSTER])
    both = (previous != NO_CLUSTER) & (found != NO_CLUSTER)
    overlap = np.zeros((len(new), len(old)), np.int64)
    np.add.at(overlap, (np.searchsorted(new, found[both]), np.searchsorted(old, previous[both])), 1)
    rows, columns = scipy.optimize.linear_sum_assignment(-overlap)
    shared = overlap[rows, columns] > 0
    names = np.full(len(new), NO_CLUSTER)
    names[rows[shared]] = old[columns[shared]]
    unnamed = names == NO_CLUSTER
    names[unnamed] = fresh + np.arange(unnamed.sum())
    matched = np.full(len(found), NO_CLUSTER, np.int64)
    matched[found != NO_CLUSTER] = names[np.searchsorted(new, found[found != NO_CLUSTER])]
    return matched
