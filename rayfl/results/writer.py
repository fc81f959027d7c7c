"""The streaming writer: writes rounds to Parquet files that can be read at any moment of the run.

A table is a folder of numbered files. Only the last file, the tail, is ever rewritten, as a whole; a new
file starts only when the tail is final. So a reader always sees all rounds up to some round, each once.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfl.errors import InputError
from rayfl.results.schema import ALWAYS, tables
from rayfl.results.storage import Storage

#: The tail becomes final when it holds this many rounds and a quarter of all rounds so far, or when rewriting it
#: becomes expensive. The number of files then grows with the logarithm of the rounds, so that one system call lists the
#: whole folder, and no rename can happen during the listing.
SEAL_ROUNDS = 64
SEAL_SHARE = 0.25
SEAL_ROWS = 500_000

_CONFIG = b"rayfl_config"


class TableWriter:
    """One table of a run. Rows are buffered until `flush`."""

    def __init__(self, storage: Storage, name: str, schema: pa.Schema, resume_after: int | None = None) -> None:
        """Start an empty table; or, with `resume_after`, continue the existing one after that round.

        Rows of later rounds, written before a crash but after the last checkpoint, are then removed.
        """
        self._storage = storage
        self._name = name
        self._schema = schema
        self._part = 0
        self._tail: list[pa.Table] = []
        self._tail_rounds = 0
        self._rounds = 0
        self._unwritten = False
        parts = [f for f in storage.list(name) if f.endswith(".parquet")]
        if parts and resume_after is None:
            raise InputError(
                f"{storage.path} already holds a run: go on with `rayfl resume {storage.path}`, or choose another name"
            )
        if resume_after is not None:
            self._rounds = take_back(storage, name, resume_after)
            self._part = len(parts)  # all existing files are now final; new rows go to a new file
        if not parts:  # a table without rows is readable too, and has all columns
            self._write_part(0, schema.empty_table())

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add the rows of one round: columns of the same length, or single values that hold for every row.

        Missing columns, None and NaN become null.
        """
        table = _to_table(columns, self._schema)
        self._tail.append(table)
        self._tail_rounds += 1
        self._rounds += 1
        self._unwritten = True

    def flush(self) -> None:
        """Write every row so far, so that readers see it."""
        if not self._unwritten:
            return
        tail = pa.concat_tables(self._tail).combine_chunks()
        self._write_part(self._part, tail)
        self._unwritten = False
        self._tail = [tail]
        enough = max(SEAL_ROUNDS, SEAL_SHARE * self._rounds)
        if self._tail_rounds >= enough or tail.num_rows > SEAL_ROWS:
            self._part += 1
            self._tail = []
            self._tail_rounds = 0

    def _write_part(self, number: int, table: pa.Table) -> None:
        _write_table(self._storage, f"{self._name}/{_part_name(number)}", table)


def take_back(storage: Storage, name: str, last: int) -> int:
    """Remove a table's rows of rounds after `last`; return how many rounds are left."""
    # From the last file to the first, so that even a second crash leaves no gap. Files are emptied, not removed,
    # because a reader may have just listed them.
    rounds = 0
    parts = [f for f in storage.list(name) if f.endswith(".parquet")]
    for number in reversed(range(len(parts))):
        file = f"{name}/{_part_name(number)}"
        part = read_table(storage.read(file))
        kept = part.filter(pc.less_equal(part["round"], last))
        if kept.num_rows < part.num_rows:
            _write_table(storage, file, kept)
        rounds += len(pc.unique(kept["round"]))
    return rounds


def _write_table(storage: Storage, file: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    storage.write(file, sink.getvalue())


class RunWriter:
    """The tables of a run. Readers are at most `flush_seconds` and one round behind.

    If writing is slow, readers are further behind, unless `flush_seconds` is 0: then every round is written at once.
    With `resume_after`, an interrupted run continues after that round; see `TableWriter`. `config` and `notes` are
    stored in the metadata of every file, so that the rows show which config they belong to.
    """

    def __init__(
        self,
        storage: Storage,
        run: str,
        method: str,
        seed: int,
        flush_seconds: float = 1.0,
        resume_after: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        config: Mapping[str, Any] | None = None,
        metrics: Sequence[str] = ALWAYS,
        sketches: bool = False,
        newcomers: bool = False,
        notes: Mapping[bytes, str] | None = None,
    ) -> None:
        self._run, self._method, self._seed = run, method, seed
        note = {**({} if config is None else {_CONFIG: json.dumps(config)}), **(notes or {})} or None
        self._tables = {
            name: TableWriter(storage, name, schema.with_metadata(note), resume_after)
            for name, schema in tables(metrics, sketches, newcomers).items()
        }
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._next_flush = -math.inf

    def write_round(
        self,
        round: int,
        summary: Mapping[str, Any],
        clients: Mapping[str, Any],
        clusters: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        sketches: Mapping[str, Any] | None = None,
        newcomers: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one round: its row of `rounds`, and columns of the other tables, without the keys (run, round, ...).

        A negative cluster or true cluster of a client means none; methods without clusters pass no `clusters`.
        """
        key = {"run": self._run, "method": self._method, "seed": self._seed, "round": round}
        self._tables["clients"].append({**_with_labels(clients), **key})
        if clusters is not None:
            self._tables["clusters"].append({**clusters, **key})
        if sketches is not None:
            self._tables["sketches"].append({**sketches, **key})
        if newcomers is not None:
            self._tables["newcomers"].append({**_with_labels(newcomers), **key})
        text = json.dumps(_plain(extras or {}), sort_keys=True, allow_nan=False)
        self._tables["rounds"].append({**summary, **key, "extras": text})
        if self._clock() >= self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write every round so far, so that readers see it; call this before writing a checkpoint."""
        start = self._clock()
        for table in self._tables.values():
            table.flush()
        end = self._clock()
        # Even with a slow disk or very many clients, writing takes at most a tenth of the time.
        wait = max(self._flush_seconds, 9 * (end - start)) if self._flush_seconds > 0 else 0.0
        self._next_flush = end + wait

    def close(self) -> None:
        """Write the rows that are still in memory."""
        self.flush()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_tables(
    storage: Storage,
    last: int,
    method: str,
    seed: int,
    metrics: Sequence[str] = ALWAYS,
    sketches: bool = False,
    newcomers: bool = False,
) -> int:
    """Make sure, before anything is written, that a run can continue after round `last`; return its last written round.

    Every file must be complete and belong to this run, and every round must be there exactly once.
    """
    written = 0
    for name, schema in tables(metrics, sketches, newcomers).items():
        rounds: list[int] = []
        runs: set[str] = set()
        files = [f for f in storage.list(name) if f.endswith(".parquet")]
        if files != [_part_name(number) for number in range(len(files))]:
            raise InputError(
                f"{storage.path}/{name} holds files that no run writes: restore the right ones, or start a new run"
            )
        for file in files:
            where = f"{storage.path}/{name}/{file}"
            try:
                part = read_table(storage.read(f"{name}/{file}"))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise InputError(
                    f"{where} is damaged ({str(error).splitlines()[0]}): restore it, or start a new run"
                ) from None
            if not set(part.schema.names) >= {"method", "seed"} and set(part.schema.names) < set(schema.names):
                raise InputError(f"{where} is of rayfl 0.1: its runs can be read, but not resumed; start a new run")
            if not part.schema.equals(schema):
                raise InputError(f"{where} is no table of a run: it has other columns; restore it, or start a new run")
            rounds += pc.unique(part["round"]).to_pylist()
            runs |= set(pc.unique(part["run"]).to_pylist())
            if name == "rounds":
                keys = set(zip(part["method"].to_pylist(), part["seed"].to_pylist(), strict=True))
                if keys - {(method, seed)}:
                    raise InputError(f"{where} is of another run, {keys}: restore the right one, or start a new run")
        if len(runs) > 1 or len(set(rounds)) < len(rounds) or min(rounds, default=1) < 1:
            raise InputError(
                f"{storage.path}/{name} holds files of several runs, {sorted(runs)}, or one of them twice:"
                " restore the right ones, or start a new run"
            )
        if name == "rounds":
            written = max(rounds, default=0)
            present = set(rounds)
            # Check the rounds one by one, without a list of all: a manipulated file may name a billion rounds.
            missing = list(islice((n for n in range(1, max(last, written) + 1) if n not in present), 5))
            if missing:
                raise InputError(f"{storage.path}/rounds lacks rounds {missing}: restore its files, or start a new run")
    return written


def written_config(storage: Storage) -> dict[str, Any] | None:
    """Return the config with which the rows were written, from the files' metadata; None if it is not there."""
    for file in [f for f in storage.list("rounds") if f.endswith(".parquet")]:
        note = read_metadata(storage.read(f"rounds/{file}")).get(_CONFIG)
        if note is not None:
            try:
                tree = json.loads(note)
            except (ValueError, RecursionError):
                tree = None
            if not isinstance(tree, dict):
                raise InputError(f"{storage.path}/rounds/{file} is damaged: restore it, or start a new run")
            return tree
    return None


def _part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def run_name(storage: Storage) -> str:
    """Return the run's name in its rows: the name of its folder, or the original name if the folder was moved."""
    for file in [f for f in storage.list("rounds") if f.endswith(".parquet")]:
        names = read_table(storage.read(f"rounds/{file}"))["run"]
        if len(names):
            return names[0].as_py()
    return storage.name


def read_table(data: Any) -> pa.Table:
    """Return the table in the bytes of one Parquet file.

    This uses only the calling thread: Arrow's threads may keep a reference to the bytes a little longer than
    `pq.read_table` takes. A thread that releases the bytes while Python shuts down aborts the process, even after a
    successful run.
    """
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def read_metadata(data: Any) -> dict[bytes, bytes]:
    """Return the metadata in the bytes of one Parquet file."""
    return pq.ParquetFile(pa.BufferReader(data)).schema_arrow.metadata or {}


def _to_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise ValueError(f"columns {sorted(unknown)} are not in the table, which has {schema.names}")
    lengths = {name: len(value) for name, value in columns.items() if _is_column(value)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of one round differ in length: {lengths}")
    rows = next(iter(lengths.values()), 1)
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if isinstance(value, pa.Array):
            array = value.cast(field.type)
        elif _is_column(value):
            array = pa.array(value, type=field.type, from_pandas=True)
        else:
            # Convert through an array, because a scalar NaN would not become null.
            array = pa.repeat(pa.array([value], type=field.type, from_pandas=True)[0], rows)
        if array.null_count and not field.nullable:
            raise ValueError(f"column {field.name} must not be empty")
        arrays.append(array)
    return pa.table(arrays, schema=schema)


def _is_column(value: Any) -> bool:
    return isinstance(value, list | tuple | pa.Array) or getattr(value, "ndim", 0) > 0


def _with_labels(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a table of clients, with null in place of negative clusters and true clusters."""
    labels = {name: _null_below_zero(columns[name]) for name in ("cluster", "true_cluster") if name in columns}
    return {**columns, **labels}


def _null_below_zero(labels: Any) -> pa.Array | None:
    if labels is None:
        return None
    array = pa.array(labels, type=pa.int32(), from_pandas=True)
    return pc.if_else(pc.greater_equal(array, 0), array, None)


def _plain(value: Any) -> Any:
    """Turn numpy values into JSON types; NaN and infinity, which JSON does not have, become null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
