"""The rounds of a run that have not been read yet, with their rows of all three tables.

Files that cannot hold new rows are not read again, so that following a long run stays cheap.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rayfl.results import TABLES, Storage
from rayfl.results.writer import read_table
from rayfl.uris import without_secrets


@dataclass(frozen=True)
class Batch:
    """Some consecutive rounds."""

    rounds: pa.Table
    clients: pa.Table
    clusters: pa.Table
    times: list[float]  # about when each round ended, in seconds since 1970

    @property
    def first(self) -> int:
        """The first round."""
        return self.rounds["round"][0].as_py()

    @property
    def last(self) -> int:
        """The last round."""
        return self.rounds["round"][-1].as_py()

    def rows(self) -> Iterator[tuple[int, float, dict[str, Any]]]:
        """Yield each round's number, time and row."""
        for row, moment in zip(self.rounds.to_pylist(), self.times, strict=True):
            yield row["round"], moment, row

    def sizes(self, number: int) -> dict[int, int]:
        """Return the size of each cluster in a round."""
        of_round = _between(self.clusters, number - 1, number)
        pairs = zip(of_round["cluster"].to_pylist(), of_round["size"].to_pylist(), strict=True)
        return {cluster: size for cluster, size in pairs if size is not None}

    def client_values(self, number: int, column: str) -> pa.Array:
        """Return the clients' values of a column in a round, without nulls."""
        return pc.drop_null(_between(self.clients, number - 1, number)[column].combine_chunks())


class NewRounds:
    """Reads the rounds after round `after`; each call of `read` continues where the last one ended."""

    def __init__(self, storage: Storage, after: int = 0, begun: float | None = None) -> None:
        self._storage, self._after = storage, after
        self._begun = time.time() if begun is None else begun
        self._passed: set[str] = set()  # files that hold no new rounds and will not get any

    def read(self) -> Iterator[Batch]:
        """Yield the new rounds, one file of `clients` at a time: the clients of a long run may not fit into memory."""
        rounds = self._rounds()
        last = rounds["round"][-1].as_py() if len(rounds) else 0
        if last <= self._after:
            return
        # A round's row in `rounds` is written last, so its rows in the other tables already exist.
        clusters = _joined("clusters", list(self._parts("clusters")))
        for part in self._parts("clients"):
            yield from self._up_to(min(last, _newest(part)), rounds, part, clusters)
        yield from self._up_to(last, rounds, _joined("clients", []), clusters)

    def _up_to(self, last: int, rounds: pa.Table, clients: pa.Table, clusters: pa.Table) -> Iterator[Batch]:
        if last <= self._after:
            return
        new, before = _between(rounds, self._after, last), _between(rounds, 0, self._after)
        begin = self._begun + (pc.sum(before["seconds_total"]).as_py() or 0.0)
        seconds = pc.cumulative_sum(pc.fill_null(new["seconds_total"], 0.0)).to_pylist()
        times = [begin + passed for passed in seconds]
        yield Batch(new, _between(clients, self._after, last), _between(clusters, self._after, last), times)
        self._after = last

    def _rounds(self) -> pa.Table:
        files = [file for file in self._storage.list("rounds") if file.endswith(".parquet")]
        table = _joined("rounds", [read_table(self._storage.read(f"rounds/{file}")) for file in files])
        return table.sort_by("round")

    def _parts(self, table: str) -> Iterator[pa.Table]:
        """Yield the files of a table that may hold rounds that have not been read.

        All files except the last one are final: a resumed run may remove rows from them, but adds none.
        """
        files = [f"{table}/{file}" for file in self._storage.list(table) if file.endswith(".parquet")]
        for file in files:
            if file not in self._passed:
                part = _joined(table, [read_table(self._storage.read(file))])
                yield part
                if file != files[-1] and _newest(part) <= self._after:
                    self._passed.add(file)


def scalars(row: dict[str, Any], sizes: dict[int, int]) -> dict[str, float]:
    """Return the numbers of a round by name: columns of `rounds`, numbers in `extras`, sizes of clusters.

    >>> scalars({"round": 1, "accuracy": 0.5, "loss": None, "extras": '{"storage": 1, "why": "x"}'}, {0: 7})
    {'rounds/accuracy': 0.5, 'extras/storage': 1.0, 'cluster_size/0': 7.0}
    """
    found = {f"rounds/{name}": value for name, value in row.items() if name not in _KEYS}
    found |= {f"extras/{name}": value for name, value in _numbers(json.loads(row.get("extras") or "{}"))}
    found |= {f"cluster_size/{cluster}": size for cluster, size in sizes.items() if cluster < MOST_CLUSTERS}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


_KEYS = ("run", "method", "seed", "round", "extras")
#: The maximum of clusters that get their own curve: no tool is useful with thousands of curves.
MOST_CLUSTERS = 100


def _numbers(tree: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        name = without_secrets(f"{prefix}{key}")
        if isinstance(value, dict):
            yield from _numbers(value, f"{name}/")
        elif isinstance(value, bool | int | float):
            yield name, float(value)


def _newest(part: pa.Table) -> int:
    return pc.max(part["round"]).as_py() or 0


def _between(table: pa.Table, after: int, last: int) -> pa.Table:
    return table.filter(pc.and_(pc.greater(table["round"], after), pc.less_equal(table["round"], last)))


def _joined(name: str, parts: list[pa.Table]) -> pa.Table:
    # A run of version 0.1 has fewer columns; a run whose task has other metrics has more.
    every = pa.schema([field.with_nullable(True) for field in TABLES[name]])
    return pa.concat_tables([every.empty_table(), *parts], promote_options="default")
