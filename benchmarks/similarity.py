"""Low-rank cosine similarity against the cosine and the L2 distance of full weights, by clients and parameters.

    python benchmarks/similarity.py [--quick]

A server asks two questions: which of a few centres is most similar to a client (FedAC), and how similar are all clients
to each other. Everything runs on one thread, as in rayfl, and the variants take turns. Full weights of many clients do
not fit into memory and would take hours: then only some clients and some parameters are measured, and the time is
scaled up (marked ~). `megabytes` is what the server must hold of its clients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from measuring import Report, Row, compared, console, is_quick, seconds, take_turns, timed
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from rayfl.clustering import cosine, fit_low_rank, project_all
from rayfl.clustering.gram import BLOCK
from rayfl.clustering.similarity import LowRankMap

CENTRES, COMPONENTS = 4, 50
MOST = 100_000_000  # maximum of numbers in one array of weights; all arrays stay below 4 GB
LOW, LOW_ALL, COSINE, L2 = "low rank", "low rank and projection", "full cosine", "full L2"
FIT = "fit of the map, every 100 rounds"


def main() -> None:
    quick = is_quick(__doc__)
    report = Report("similarity", quick)
    sizes = [100, 1000] if quick else [100, 1_000, 10_000]
    with threadpool_limits(1):
        for parameters in [60_000, 600_000] if quick else [60_000, 600_000, 5_000_000]:
            low_rank, fitting = fitted(parameters)
            report.add(fitting)
            for clients in sizes:
                report.add(*measured(clients, parameters, low_rank, 3 if quick else 5))
    show(report)


def show(report: Report) -> None:
    by_variant = {(row.what, row.figure, row.variant): row for row in report.rows}

    def of(row: Row, variant: str) -> Row:
        return by_variant[row.what, row.figure, variant]

    def time(row: Row, variant: str) -> str:
        found = of(row, variant)
        return "~ " * found.extrapolated + seconds(found.seconds)

    def ratio(row: Row, variant: str) -> str:
        """Compare with the server's work alone, and with the projections added, which clients compute in parallel."""
        slow, fast, all_fast = of(row, variant).seconds, of(row, LOW).seconds, of(row, LOW_ALL).seconds
        assert slow is not None and fast is not None and all_fast is not None
        return f"{slow / fast:,.0f} x, {slow / all_fast:.1f} x"

    report.show(
        f"similarity by sketches (D = {COMPONENTS}) and by full weights, one thread; ~: measured on a part",
        {
            "clients, parameters": lambda row: row.what,
            "what": lambda row: row.figure,
            "sketches": lambda row: time(row, LOW),
            "and projecting": lambda row: time(row, LOW_ALL),
            "full cosine": lambda row: time(row, COSINE),
            "x": lambda row: ratio(row, COSINE),
            "full L2": lambda row: time(row, L2),
            " x": lambda row: ratio(row, L2),
            "MB held": lambda row: f"{row.megabytes:,.1f} / {of(row, COSINE).megabytes:,.0f}",
        },
        [row for row in report.rows if row.variant == LOW],
    )
    for row in report.rows:
        if row.figure == FIT:
            console().print(f"fit of the map on {COMPONENTS + 1} models of {row.what}: {seconds(row.seconds)}")


def fitted(parameters: int) -> tuple[LowRankMap, Row]:
    """Fit the map on the fewest models that give D directions; rayfl fits it every 100 rounds."""
    weights = some_weights(COMPONENTS + 1, parameters)
    found: list[LowRankMap] = []
    time = timed(lambda: found.append(fit_low_rank(weights, COMPONENTS)))
    return found[0], Row(f"{parameters:,} parameters", "fit", FIT, time)


def measured(clients: int, parameters: int, low_rank: LowRankMap, repetitions: int) -> list[Row]:
    """Measure both questions for one size."""
    what = f"{clients:,}, {parameters:,}"
    sketches = np.random.default_rng(1).standard_normal((clients, COMPONENTS))
    initial = np.zeros(parameters, np.float32)
    some = some_weights(min(clients, 32, MOST // parameters), parameters)
    projecting = Scaled(partial(project_all, low_rank, list(some), initial), clients / len(some))
    rows = min(clients, 1000)
    found = []
    for figure, pairs in (("to 4 centres", False), ("all pairs", True)):
        block = some_weights(rows, min(parameters, BLOCK if pairs else MOST // rows))
        narrow = block[:, :1024] if pairs else block  # for L2: differences take ten times as long as products
        others, tiles = (rows, (clients / rows) ** 2) if pairs else (CENTRES, clients / rows)
        sides = {
            LOW: Scaled(partial(cosine, sketches, sketches if pairs else sketches[:CENTRES])),
            COSINE: Scaled(partial(full_cosine, block, block[:others]), tiles * parameters / block.shape[1]),
            L2: Scaled(partial(full_l2, narrow, narrow[:others]), tiles * parameters / narrow.shape[1]),
            LOW_ALL: projecting,
        }
        turns = take_turns({name: partial(timed, side.work) for name, side in sides.items()}, repetitions)
        times = {name: [t * sides[name].factor for _, t in turns[name]] for name in sides}
        times[LOW_ALL] = [a + b for a, b in zip(times[LOW], times[LOW_ALL], strict=True)]
        for name, side in sides.items():
            megabytes = clients * (COMPONENTS * 8 if name in (LOW, LOW_ALL) else parameters * 4) / 1e6
            row = compared(what, name, figure, times[name], LOW, times[LOW])
            found.append(replace(row, megabytes=megabytes, extrapolated=side.factor > 1))
    return found


@dataclass(frozen=True)
class Scaled:
    """A piece of work, and the factor by which its time must be multiplied."""

    work: Callable[[], object]
    factor: float = 1.0


def some_weights(clients: int, parameters: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((clients, parameters), dtype=np.float32)


def full_cosine(clients: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compute cosines by matrix products in float32, in blocks that stay in the cache."""
    products = np.zeros((len(clients), len(others)), np.float32)
    squares, other_squares = np.zeros(len(clients), np.float32), np.zeros(len(others), np.float32)
    for start in range(0, clients.shape[1], BLOCK):
        a, b = clients[:, start : start + BLOCK], others[:, start : start + BLOCK]
        products += a @ b.T
        squares += np.einsum("ij,ij->i", a, a)
        other_squares += np.einsum("ij,ij->i", b, b)
    products /= np.sqrt(squares)[:, None]
    products /= np.sqrt(other_squares)
    return products


def full_l2(clients: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compute distances by differences, as K-means over weights must: the models of a federation are close together."""
    return cdist(clients, others, "sqeuclidean")


if __name__ == "__main__":
    main()
