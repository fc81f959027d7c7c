"""Who gets what of a feature or concept part: planted per cluster, or each client its own; all clients or a share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rayfl.config.feature_parts import PlacedPart

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Planting(Generic[Thing]):
    """What a part does, and to whom. `things` has one entry per cluster, or per client; None does nothing."""

    things: Sequence[Thing | None]
    by_cluster: bool
    member: np.ndarray  # whether a client is in the share that the part is for
    clusters: frozenset[int] | None  # the clusters that it is for

    def numbers(self, clients: np.ndarray, cluster_of: np.ndarray) -> np.ndarray:
        """Return the index in `things` of what each of these clients gets in its cluster; -1: nothing."""
        number = cluster_of if self.by_cluster else clients
        gets = self.member[clients] & self._some[number]
        if self.clusters is not None:
            gets &= np.isin(cluster_of, list(self.clusters))
        return np.where(gets, number, -1)

    @property
    def _some(self) -> np.ndarray:
        return np.array([thing is not None for thing in self.things])

    def of_cluster(self, cluster: int) -> Any:
        """Return a value that differs between two clusters if the part sets them apart."""
        if self.clusters is not None and cluster not in self.clusters:
            return None
        return self.things[cluster] if self.by_cluster else self.member.any()


def planted(
    part: PlacedPart,
    true_cluster: np.ndarray,
    clusters: int,
    rng: np.random.Generator,
    make: Callable[[dict[str, Any], int], Thing | None],
) -> Planting[Thing]:
    """Draw who is in the share and the values of clients, and make what each cluster or client gets.

    `make(values, number)` gets the part's keys with one value each, and the number of the cluster or the client.
    """
    clients = len(true_cluster)
    member = np.ones(clients, bool)
    order = rng.permutation(clients)  # drawn in any case, so that a share changes nobody's values
    if part.share is not None:
        # Every stretch of the clients, sorted by cluster, has this share of members, up to rounding.
        ordered = order[np.argsort(true_cluster[order], kind="stable")]
        steps = np.floor(np.arange(clients + 1) * part.share + 1e-9)
        member[ordered] = np.diff(steps) > 0
    count = clusters if part.by == "cluster" else clients
    columns = {key: _column(values, count, part.by == "client", rng) for key, values in part.values.items()}
    things = [make({key: column[at] for key, column in columns.items()}, at) for at in range(count)]
    return Planting(things, part.by == "cluster", member, None if part.clusters is None else frozenset(part.clusters))


def _column(values: Sequence[Any], count: int, draw: bool, rng: np.random.Generator) -> Sequence[Any]:
    """Return a value for each cluster or client: the only one, one each, or drawn from a range or from a few."""
    if len(values) == 1:
        return [values[0]] * count
    if not draw:
        return values
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers:
        return [values[at] for at in rng.integers(len(values), size=count)]
    low, high = values
    if isinstance(low, int) and isinstance(high, int):
        return rng.integers(low, high, size=count, endpoint=True).tolist()
    return np.round(rng.uniform(low, high, size=count), 6).tolist()
