"""The columns and types of the three tables, fixed here and nowhere else.

A column keeps its type when a file holds only nulls in it. Keys are never null; everything measured may be,
since not every round is evaluated and not every data set has true clusters.
"""

import pyarrow as pa


def _key(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


#: One row per round.
ROUNDS = pa.schema(
    [
        _key("run", pa.string()),
        _key("method", pa.string()),
        _key("seed", pa.int64()),
        _key("round", pa.int64()),
        pa.field("accuracy", pa.float64()),
        pa.field("macro_f1", pa.float64()),
        pa.field("loss", pa.float64()),
        pa.field("accuracy_mean", pa.float64()),
        pa.field("macro_f1_mean", pa.float64()),
        pa.field("clusters", pa.int32()),
        pa.field("largest_share", pa.float64()),
        pa.field("ari", pa.float64()),
        pa.field("nmi", pa.float64()),
        pa.field("misclustering", pa.float64()),
        pa.field("clients_trained", pa.int64()),
        pa.field("bytes_up", pa.int64()),
        pa.field("bytes_down", pa.int64()),
        pa.field("seconds_train", pa.float64()),
        pa.field("seconds_server", pa.float64()),
        pa.field("seconds_eval", pa.float64()),
        pa.field("seconds_total", pa.float64()),
        _key("extras", pa.string()),  # a JSON object: what only this method reports
    ]
)

#: One row per round and client. `cluster` is null for a client that never took part.
CLIENTS = pa.schema(
    [
        _key("run", pa.string()),
        _key("round", pa.int64()),
        _key("client", pa.int64()),
        pa.field("cluster", pa.int32()),
        pa.field("true_cluster", pa.int32()),
        pa.field("trained", pa.bool_()),
        pa.field("n_train", pa.int64()),
        pa.field("n_test", pa.int64()),
        pa.field("accuracy", pa.float64()),
        pa.field("macro_f1", pa.float64()),
        pa.field("loss", pa.float64()),
    ]
)

#: One row per round and cluster.
CLUSTERS = pa.schema(
    [
        _key("run", pa.string()),
        _key("round", pa.int64()),
        _key("cluster", pa.int32()),
        pa.field("size", pa.int64()),
        pa.field("intra", pa.float64()),
        pa.field("inter", pa.float64()),
        pa.field("granularity", pa.float64()),
    ]
)

#: The tables by name, which is also their folder's. Written in this order, so that a round shown by `rounds`
#: has its details already there.
TABLES: dict[str, pa.Schema] = {"clients": CLIENTS, "clusters": CLUSTERS, "rounds": ROUNDS}
