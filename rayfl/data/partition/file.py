"""Partitions as files: a Parquet table of samples, with everything else in its metadata.

The table has a row per client and sample; `rayfl.analysis.partition_table` makes it. A file may come from anybody, so
all that is read is checked, and only code that the config names is imported.
"""

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayfl.config.partition import FilePartition
from rayfl.data.dataset import Dataset, Transform
from rayfl.data.partition.digests import data_digest, partition_digest
from rayfl.data.partition.flat import flat_partition
from rayfl.data.partition.kind import PartitionKind
from rayfl.data.partition.parts.features import Feature
from rayfl.data.partition.plain import plain_transform, read_transform
from rayfl.data.partition.result import Change, Partition
from rayfl.data.partition.splits import Dealt
from rayfl.errors import InputError
from rayfl.host_memory import Need, memory_here, refuse_excess

if TYPE_CHECKING:
    import pyarrow as pa

#: The key of the metadata.
NOTE = b"rayfl_partition"
SPLITS = ("train", "validation", "test", "public")
_ROW_BYTES = 64  # per row of the table, with the arrays that are made from it
Count = Annotated[int, Field(ge=0, lt=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _ChangeNote(_Strict):
    round: Annotated[int, Field(ge=1, lt=2**31)]
    clients: list[Count]
    true_cluster: list[Count]
    transform_of: list[Count] | None


class _Note(_Strict):
    """What the metadata say; `config` is for people to read."""

    version: Literal[1] = 1
    data: str
    partition: str
    clients: Annotated[int, Field(ge=1, lt=2**31)]
    transforms: list[dict[str, Any]]
    changes: list[_ChangeNote]
    config: dict[str, Any]


def file_metadata(partition: Partition, dataset: Dataset, config: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the metadata of a partition's file; `config` says how its data and the partition were made."""
    changes = [
        _ChangeNote(
            round=change.round,
            clients=change.clients.tolist(),
            true_cluster=change.true_cluster.tolist(),
            transform_of=None if change.transform_of is None else change.transform_of.tolist(),
        )
        for change in partition.changes
    ]
    note = _Note(
        data=data_digest(dataset),
        partition=partition_digest(partition),
        clients=partition.clients,
        transforms=[plain_transform(transform) for transform in partition.transforms],
        changes=changes,
        config=dict(config),
    )
    return {NOTE: note.model_dump_json().encode()}


class FromFile(PartitionKind):
    """The partition that a file holds, with the same bits as when it was saved."""

    name = "file"
    config: FilePartition

    def make(self, dataset: Dataset, seed: int) -> Partition:
        """Read the file; the seed changes nothing."""
        return read_partition(self.config.path, dataset, self.config.functions)


def read_partition(path: str, dataset: Dataset, functions: Collection[str] = ()) -> Partition:
    """Return the partition of these data in a file; `functions` are the import paths that the file may name."""
    try:
        note, table = _read(path, dataset)
        partition = _partition(note, _Rows(table, note, dataset), dataset, functions)
    except InputError as error:
        raise InputError(f"partition.path={path}: {error}") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise InputError(f"partition.path={path} is damaged ({error}): save the partition again") from None
    if partition_digest(partition) != note.partition:
        raise InputError(
            f"partition.path={path} was changed after it was saved: its samples are not those of its fingerprint; save"
            " the partition again"
        )
    return partition


def _read(path: str, dataset: Dataset) -> tuple[_Note, "pa.Table"]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    remade = "make one with 'rayfl partition -o partition.parquet'"
    try:
        with pq.ParquetFile(path) as file:
            metadata, rows = file.schema_arrow.metadata or {}, file.metadata.num_rows
            if NOTE not in metadata:
                raise InputError(f"it is no partition that rayfl saved: {remade}")
            note = _Note.model_validate_json(metadata[NOTE])
            if note.data != data_digest(dataset):
                raise InputError(
                    "it was saved for other data: use the data section that it was made with"
                    f" ({_short(note.config.get('data'))}), and the same partition.seed if data.limit is set"
                )
            refuse_excess([Need(f"a partition of {rows:,} rows", _ROW_BYTES * rows, "partition.path")], memory_here())
            names = ["client", "sample", "split", "cluster", "transform"]
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                raise InputError(f"it has no column '{missing[0]}': {remade}")
            names += ["name"] if "name" in file.schema_arrow.names else []
            return note, file.read(columns=names)
    except FileNotFoundError:
        raise InputError(f"there is no such file: {remade}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}"
        raise InputError(f"its metadata are damaged, or of another version of rayfl ({why}): {remade}") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"it cannot be read as a Parquet file ({reason}): {remade}") from None


class _Rows:
    """The columns of a file, checked."""

    def __init__(self, table: "pa.Table", note: _Note, dataset: Dataset) -> None:
        self.clients = note.clients
        self.client = _numbers(table, "client", -1)
        self.sample = _numbers(table, "sample", None)
        self.split = _splits(table)
        public = self.split == SPLITS.index("public")
        _need(np.array_equal(public, self.client < 0), "rows without a client must be public")
        _need(_within(self.client[~public], self.clients), "a client is out of range")
        _need(_within(self.sample, len(dataset)), f"a sample is out of range, there are {len(dataset)}")
        for split in ("train", "test"):
            held = np.bincount(self.client[self.split == SPLITS.index(split)], minlength=self.clients)
            _need(bool(held.min() > 0), f"client {held.argmin()} has no {split} sample")
        self.cluster = self._of_clients(_numbers(table, "cluster", -1), "cluster")
        self.transform = self._of_clients(_numbers(table, "transform", -1), "transform")
        self._refuse_twice(len(dataset))
        self.names = self._names(table) if "name" in table.column_names else None

    def _of_clients(self, values: np.ndarray, what: str) -> np.ndarray | None:
        """Return the one value of each client; None if nobody has one."""
        mine = self.client >= 0
        found = np.full(self.clients, -1)
        found[self.client[mine]] = values[mine]
        _need(np.array_equal(found[self.client[mine]], values[mine]), f"a client has more than one {what}")
        _need(bool((values[~mine] < 0).all()), f"a public sample has a {what}")
        if (found < 0).all():
            return None
        _need(bool(found.min() >= 0), f"some clients have no {what}")
        return found

    def _refuse_twice(self, samples: int) -> None:
        """Refuse a sample that two clients of a cluster hold, or that is in two splits."""
        cluster = np.zeros(self.clients, np.int64) if self.cluster is None else self.cluster
        mine = self.client >= 0
        held = np.unique(cluster, return_inverse=True)[1].reshape(-1)[self.client[mine]] * samples + self.sample[mine]
        values, counts = np.unique(held, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"sample {values[counts.argmax()] % samples} is held twice within a cluster")
        uses = np.unique(self.sample * len(SPLITS) + self.split)
        _need(len(uses) == len(np.unique(self.sample)), "a sample is in two of train, validation, test and public")
        public = self.sample[~mine]
        _need(len(np.unique(public)) == len(public), "a public sample is there twice")

    def _names(self, table: "pa.Table") -> tuple[str, ...]:
        given = table.column("name").to_pylist()
        found: dict[int, Any] = {}
        for client, name in zip(self.client.tolist(), given, strict=True):
            if client >= 0 and found.setdefault(client, name) != name:
                raise ValueError(f"client {client} has two names")
        _need(all(isinstance(name, str) for name in found.values()), "some clients have no name")
        return tuple(found[client] for client in range(self.clients))

    def dealt(self) -> Dealt:
        """Return the samples in the order of clients."""
        parts: dict[str, np.ndarray] = {}
        for number, split in enumerate(SPLITS[:3]):
            mine = np.flatnonzero(self.split == number)
            mine = mine[np.argsort(self.client[mine], kind="stable")]
            parts[split] = self.sample[mine]
            parts[f"n_{split}"] = np.bincount(self.client[mine], minlength=self.clients)
        return Dealt(**parts)

    def public(self) -> np.ndarray:
        """Return the public samples, in their order."""
        return np.sort(self.sample[self.client < 0])


def _partition(note: _Note, rows: _Rows, dataset: Dataset, functions: Collection[str]) -> Partition:
    transforms = tuple(read_transform(plain, functions) for plain in note.transforms)
    for transform in set(transforms):
        _check_transform(transform, dataset)
    number = rows.transform
    _need((number is None) == (not transforms), "the table has transforms, or the metadata, and the other has none")
    _need(number is None or _within(number, len(transforms)), "a transform is out of range")
    _need(rows.cluster is not None or not note.changes, "clients change cluster, and none are planted")
    rounds = [change.round for change in note.changes]
    _need(rounds == sorted(set(rounds)), "changes do not stand in the order of their rounds")
    changes = tuple(_change(change, note.clients, len(transforms)) for change in note.changes)
    return flat_partition(rows.dealt(), rows.public(), rows.cluster, transforms, number, rows.names, changes)


def _check_transform(transform: Transform, dataset: Dataset) -> None:
    key = "a transform of it"
    _need(transform.labels is None or len(transform.labels) == dataset.classes, f"{key} has labels of other classes")
    turned = transform.turns or transform.degrees or transform.invert
    _need(not turned or dataset.kind == "image", f"{key} is for images")
    _need(not transform.turns % 2 or dataset.input_shape[-2] == dataset.input_shape[-1], f"{key} needs square images")
    whole = dataset.inputs.dtype == np.uint8
    _need(whole or not (transform.degrees or transform.invert), f"{key} needs pixels in whole numbers")
    for step in transform.steps:
        assert isinstance(step, Feature)
        step.check(dataset, key)


def _change(change: _ChangeNote, clients: int, transforms: int) -> Change:
    who, cluster = np.array(change.clients, np.int64), np.array(change.true_cluster, np.int64)
    number = None if change.transform_of is None else np.array(change.transform_of, np.int64)
    _need(len(np.unique(who)) == len(who) == len(cluster), "a change names a client twice, or not its cluster")
    _need(len(who) > 0 and _within(who, clients), "a change names a client out of range")
    good = number is None or (len(number) == len(who) and _within(number, transforms))
    _need(good, "a change names a transform out of range")
    return Change(change.round, who, cluster, number)


def _numbers(table: "pa.Table", name: str, missing: int | None) -> np.ndarray:
    import pyarrow.types as types

    column = table.column(name)
    _need(types.is_integer(column.type) or types.is_null(column.type), f"column {name} holds no whole numbers")
    _need(missing is not None or column.null_count == 0, f"column {name} has gaps")
    whole = column.cast("int64").fill_null(missing) if missing is not None else column.cast("int64")
    values = whole.to_numpy()
    _need(len(values) == 0 or bool(values.min() >= (-1 if missing is not None else 0)), f"column {name} is negative")
    return values


def _splits(table: "pa.Table") -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(table.column("split").cast("string"), value_set=pa.array(SPLITS))
    _need(found.null_count == 0, f"column split must hold {', '.join(SPLITS)}")
    return found.to_numpy().astype(np.int64)


def _within(values: np.ndarray, count: int) -> bool:
    return len(values) == 0 or (values.min() >= 0 and values.max() < count)


def _need(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def _short(config: Any) -> str:
    text = json.dumps(config)
    return text if len(text) <= 200 else f"{text[:200]}..."
