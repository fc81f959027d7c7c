"""Similarity of the models that clients trained, from the sketches that `output.sketches` writes."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from rayfl.analysis.views.matrices import Matrix, Order, of_clients
from rayfl.clustering import cosine, l2_distances
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

Measure = Literal["cosine", "l2"]
Plane = Literal["pca", "tsne"]

_COLUMNS = ["round", "client", "x", "y", "cluster", "true_cluster"]


def sketch_similarity(
    run: "Run", round: int | None = None, measure: Measure = "cosine", order: Order = "cluster"
) -> Matrix:
    """Return the similarity between the models that clients trained in a round (default: the last one).

    Models are taken relative to the common initial model and compared by their sketches, with an error of a few percent
    (see `rayfl.clustering.sketching`). The matrix is empty if the run has no sketches.
    """
    if measure not in ("cosine", "l2"):
        raise InputError(f"measure={measure!r} is not allowed; allowed: cosine, l2")
    number, clients, points = _sketches(run, round)
    values = cosine(points, points) if measure == "cosine" or not len(points) else l2_distances(points)
    name = "cosine similarity" if measure == "cosine" else "L2 distance"
    return of_clients(run, values, clients, name, number).ordered(order)


def plane(run: "Run", round: int | None = None, method: Plane = "pca") -> pd.DataFrame:
    """Return the models that clients trained in a round as points: round, client, x, y, cluster, true_cluster.

    `pca` preserves distances as well as a plane can; `tsne` preserves neighbours, but its large distances may mean
    nothing. Both give the same points every time. Empty if the run has no sketches.
    """
    if method not in ("pca", "tsne"):
        raise InputError(f"method={method!r} is not allowed; allowed: pca, tsne")
    number, clients, points = _sketches(run, round)
    if not len(clients):
        return pd.DataFrame(columns=_COLUMNS)
    at = _principal(points) if method == "pca" else _neighbours(points)
    matrix = of_clients(run, np.zeros((len(clients), len(clients))), clients, "", number)
    frame = pd.DataFrame({"round": number, "client": clients, "x": at[:, 0], "y": at[:, 1]})
    for name, found in (("cluster", matrix.cluster), ("true_cluster", matrix.truth)):
        frame[name] = pd.Series(found, dtype="Int64").where(found >= 0)
    return frame


def _sketches(run: "Run", round: int | None) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the round, the clients that trained in it, and their sketches (n, D)."""
    rows = run.sketches
    if rows.empty:
        return 0, np.array([], dtype=np.int64), np.zeros((0, 1))
    number = int(rows["round"].max()) if round is None else round
    rows = rows[rows["round"] == number]
    if rows.empty:
        there = run.sketches["round"]
        raise InputError(f"round={round}: {run.path} has sketches of the rounds {there.min()} to {there.max()}")
    return number, rows["client"].to_numpy(), np.stack(rows["sketch"].to_list()).astype(float)


def _principal(points: np.ndarray) -> np.ndarray:
    """Return the first two principal components; the sign of each is such that its largest entry is positive."""
    left, strengths, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    found = np.zeros((len(points), 2))
    count = min(2, left.shape[1])
    found[:, :count] = left[:, :count] * strengths[:count]
    signs = np.sign(found[np.abs(found).argmax(axis=0), [0, 1]])
    return found * np.where(signs == 0, 1, signs)


def _neighbours(points: np.ndarray) -> np.ndarray:
    if len(points) < 4:
        raise InputError(f"method='tsne' needs 4 clients or more, and {len(points)} trained in this round: use pca")
    from sklearn.manifold import TSNE  # takes a second

    perplexity = min(30.0, (len(points) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(points.astype(np.float32))
