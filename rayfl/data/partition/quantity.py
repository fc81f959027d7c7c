"""How many samples each client gets, and how many clients are in each planted cluster."""

from dataclasses import dataclass

import numpy as np

from rayfl.config.partition import SizedPartition
from rayfl.config.partition_base import PlantedPartition
from rayfl.data.partition.counting import share_out
from rayfl.data.partition.splits import Splits
from rayfl.errors import InputError


@dataclass(frozen=True)
class AskedSizes:
    """Samples of each client, training and test together; `exact`: not reduced even where classes are scarce."""

    sizes: np.ndarray
    exact: bool


def cluster_of_clients(config: PlantedPartition) -> np.ndarray:
    """Return the planted cluster of each client, in the order of clusters; sizes differ by one at most if not given."""
    assert config.clients is not None  # the config fills it in
    sizes = config.cluster_sizes or [
        config.clients // config.clusters + (k < config.clients % config.clusters) for k in range(config.clusters)
    ]
    return np.repeat(np.arange(config.clusters), sizes)


def check_sizes(config: SizedPartition, clients: int, splits: Splits) -> None:
    """Refuse more clients than samples."""
    official, pool, held_out = config.test == "official", len(splits.pool), len(splits.test)
    most = min(pool, held_out) if official else pool // 2
    if clients > most:
        what = f"1 of the {pool} training and 1 of the {held_out} test" if official else f"2 of the {pool}"
        raise InputError(f"partition.clients={clients} cannot each get {what} samples: use at most {most} clients")
    check_range(config, clients, pool + held_out)


def check_range(config: SizedPartition, clients: int, total: int) -> None:
    """Refuse a range of sizes whose products would not fit whole-number arithmetic."""
    if config.samples is not None and clients * config.samples[1] * total >= 2**62:
        raise InputError(
            f"partition.samples={config.samples} is too large: there are {total} samples in all, end the range there"
        )


def drawn_sizes(
    config: SizedPartition,
    clients: int,
    floor: int,
    pool: int,
    held_out: int,
    rng: np.random.Generator,
    asked: AskedSizes | None = None,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return each client's size in the pool (None: deal it all) and in the official test split."""
    official = config.test == "official"
    needed = floor + official
    if asked is not None:
        sizes = _with_floor(asked, needed, pool + held_out)
        return _split_sizes(sizes, needed, pool, held_out, rng, "quantity") if official else (sizes, sizes * 0)
    if config.samples is None:
        return None, np.zeros(clients, np.int64)
    least, largest = config.samples
    if least < needed:
        raise InputError(
            f"partition.samples={config.samples} is too few: a client of this partition needs at least"
            f" {needed} samples, so start the range at {needed}"
        )
    total = pool + held_out
    if clients * least > total:
        raise InputError(
            f"partition.samples={config.samples} for partition.clients={clients} needs at least"
            f" {clients * least} samples, there are {total}: use at most {total // least} clients or start"
            f" the range at {total // clients}"
        )
    sizes = rng.integers(least, largest, size=clients, endpoint=True)
    if sizes.sum() > total:
        sizes = least + share_out(sizes - least, total - least * clients, rng)
    if not official:
        return sizes, np.zeros(clients, np.int64)
    return _split_sizes(sizes, needed, pool, held_out, rng, f"samples={config.samples}")


def _with_floor(asked: AskedSizes, needed: int, total: int) -> np.ndarray:
    """Return the sizes that a quantity part asks for, raised to the `needed` samples per client."""
    sizes, clients = asked.sizes, len(asked.sizes)
    if sizes.min() < needed and (asked.exact or needed * clients > sizes.sum()):
        raise InputError(
            f"partition.quantity gives client {sizes.argmin()} {sizes.min()} samples: a client of this partition needs"
            f" at least {needed}, so ask for more samples, or for fewer clients or classes per client"
        )
    if sizes.sum() > total:
        raise InputError(f"partition.quantity gives {sizes.sum()} samples in all, and there are {total}: ask for less")
    return raised(sizes, np.full(clients, needed))


def _split_sizes(
    sizes: np.ndarray, needed: int, pool: int, held_out: int, rng: np.random.Generator, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Split each size between the pool and the official test split, overall in proportion to these two."""
    clients, total = len(sizes), pool + held_out
    free = sizes - needed
    at_most = min(held_out, clients + int(free.sum()))
    at_least = max(clients, int(sizes.sum()) - pool)
    if at_least > at_most:
        raise InputError(
            f"partition.{what} for partition.clients={clients} needs at least {at_least}"
            f" test samples, the source has {held_out} for them: use fewer clients or samples, or a share"
            " such as partition.test=0.2"
        )
    tested = min(max(round(int(sizes.sum()) * held_out / total), at_least), at_most)
    test_sizes = np.ones(clients, np.int64)
    if tested > clients:
        test_sizes += share_out(free, tested - clients, rng)
    return sizes - test_sizes, test_sizes


def raised(sizes: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Raise every size to its floor, at the cost of the largest sizes, which are cut to one level."""
    missing = int(np.maximum(floor - sizes, 0).sum())
    if missing == 0:
        return sizes
    low, high = int(floor.max()), int(sizes.max())
    while low < high:  # the highest level that frees enough
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= missing else (low, level - 1)
    raised = np.maximum(np.minimum(sizes, low), floor)
    spare = int(sizes.sum() - raised.sum())
    raised[np.flatnonzero(sizes > low)[:spare]] += 1
    return raised
