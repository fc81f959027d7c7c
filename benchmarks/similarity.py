"""Low-rank cosine similarity against the cosine of full weights: FedAC's convnet, 25 clients, 4 centres.

    python benchmarks/similarity.py

All on one thread, as actors compute; the variants take turns in each repetition, and medians are printed.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from rayfl.clustering import cosine, fit_low_rank, project_all
from rayfl.config import ModelConfig
from rayfl.models import FlatModel, build_model

CLIENTS, CENTRES, COMPONENTS, REPETITIONS = 25, 4, 50, 5


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def full_cosine(clients: np.ndarray, centres: np.ndarray) -> np.ndarray:
    norms = np.sqrt(np.einsum("ij,ij->i", clients, clients)[:, None] * np.einsum("ij,ij->i", centres, centres))
    return clients @ centres.T / norms


def main() -> None:
    initial = FlatModel(build_model(ModelConfig(name="fedac_cnn"), (3, 32, 32), 10, None, seed=0)).numpy()
    rng = np.random.default_rng(0)
    clients = initial + 0.01 * rng.standard_normal((CLIENTS, len(initial)), dtype=np.float32)
    centres = clients[:CENTRES].copy()
    seconds: dict[str, list[float]] = {"fit": [], "project": [], "low rank": [], "full": []}
    with threadpool_limits(1):
        for _ in range(REPETITIONS):
            seconds["fit"].append(timed(lambda: fit_low_rank(clients, COMPONENTS)))
            low_rank = fit_low_rank(clients, COMPONENTS)
            seconds["project"].append(timed(lambda m=low_rank: project_all(m, list(clients), initial)) / CLIENTS)
            sketches = project_all(low_rank, list(clients), initial)
            some = sketches[:CENTRES]
            seconds["low rank"].append(timed(lambda s=sketches, c=some: [cosine(s, c) for _ in range(100)]) / 100)
            seconds["full"].append(timed(lambda: full_cosine(clients, centres)))
    middle = {name: median(values) for name, values in seconds.items()}
    table = Table(title=f"{len(initial):,} parameters, {CLIENTS} clients, {CENTRES} centres, D = {len(sketches[0])}")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    table.add_row("fit of the map (round 1, then every pca_every rounds)", f"{middle['fit']:.3f}")
    table.add_row("a client projects its model (every round, on the clients' side)", f"{middle['project']:.4f}")
    table.add_row("similarity per round at the server, low rank", f"{middle['low rank']:.6f}")
    table.add_row("similarity per round at the server, full weights", f"{middle['full']:.4f}")
    table.add_row("full / low rank", f"{middle['full'] / middle['low rank']:.0f} x")
    Console().print(table)


if __name__ == "__main__":
    main()
