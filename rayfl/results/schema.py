"""The columns and types of a run's tables, defined only here.

A column keeps its type even in a file where all its values are null. Keys are never null; every measured value may be,
because not every round is evaluated and not every data set has true clusters.
"""

from collections.abc import Sequence

import pyarrow as pa


def _key(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_KEYS = [_key("run", pa.string()), _key("method", pa.string()), _key("seed", pa.int64()), _key("round", pa.int64())]

#: One row per round and client that trained: how its model differs from the initial one, in a few numbers.
SKETCHES = pa.schema([*_KEYS, _key("client", pa.int64()), _key("sketch", pa.list_(pa.field("element", pa.float32())))])

#: The metrics that have columns in every run, even if the task does not have them; a task may also have others.
ALWAYS = ("accuracy", "macro_f1")


def tables(metrics: Sequence[str] = ALWAYS, sketches: bool = False, newcomers: bool = False) -> dict[str, pa.Schema]:
    """Return the tables of a run whose task has these metrics, by name; a table's folder has the same name.

    `sketches` adds a table about the models that clients trained, `newcomers` a table of the newcomers' tests.

    Tables are written in this order: when a round appears in `rounds`, its rows in the other tables already exist.
    """
    more = [metric for metric in metrics if metric not in ALWAYS]
    #: One row per round.
    rounds = [
        *_KEYS,
        *_numbers("accuracy", "macro_f1", "loss", "accuracy_mean", "macro_f1_mean", "accuracy_std", "accuracy_worst10"),
        *_numbers(*[name for metric in more for name in (metric, f"{metric}_mean")]),
        pa.field("clusters", pa.int32()),
        *_numbers("largest_share", "ari", "nmi", "misclustering"),
        pa.field("clients_trained", pa.int64()),
        pa.field("bytes_up", pa.int64()),
        pa.field("bytes_down", pa.int64()),
        *_numbers("seconds_train", "seconds_server", "seconds_eval", "seconds_total"),
        _key("extras", pa.string()),  # a JSON object: what only this method reports
    ]
    #: One row per round and client. `cluster` is null for a client that never took part.
    clients = [
        *_KEYS,
        _key("client", pa.int64()),
        pa.field("cluster", pa.int32()),
        pa.field("true_cluster", pa.int32()),
        pa.field("trained", pa.bool_()),
        pa.field("n_train", pa.int64()),
        pa.field("n_test", pa.int64()),
        *_numbers("accuracy", "macro_f1", "loss", *more),
    ]
    #: One row per round and cluster.
    clusters = [
        *_KEYS,
        _key("cluster", pa.int32()),
        pa.field("size", pa.int64()),
        *_numbers("intra", "inter", "granularity"),
    ]
    found = {"clients": pa.schema(clients), "clusters": pa.schema(clusters)}
    if sketches:
        found["sketches"] = SKETCHES
    if newcomers:
        found["newcomers"] = _newcomers(more)
    return {**found, "rounds": pa.schema(rounds)}


def _numbers(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.float64()) for name in names]


def _newcomers(more: Sequence[str] = ()) -> pa.Schema:
    return pa.schema(
        [
            *_KEYS,
            _key("client", pa.int64()),
            pa.field("cluster", pa.int32()),
            pa.field("true_cluster", pa.int32()),
            _key("tuned", pa.int64()),
            pa.field("n_train", pa.int64()),
            pa.field("n_test", pa.int64()),
            *_numbers("accuracy", "macro_f1", "loss", *more),
        ]
    )


#: One row per newcomer and number of rounds of fine-tuning after which it was tested.
NEWCOMERS = _newcomers()

TABLES = tables()
