"""A partition as a table: one row per client and sample. Writes it as Parquet or csv."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.partition import Partition
from rayfl.data.partition.file import file_metadata
from rayfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: Endings that a table's file name may have.
TABLES = (".parquet", ".csv")


def check_partition_file(path: Path) -> None:
    """Refuse a file that cannot be written, before there is anything to write."""
    from rayfl.analysis.partition_figure import FIGURES

    if path.suffix.lower() not in (*FIGURES, *TABLES):
        raise InputError(f"-o {path}: figures end in one of {', '.join(FIGURES)}, tables in {' or '.join(TABLES)}")
    if not path.parent.is_dir():
        raise InputError(f"-o {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise InputError(f"-o {path} is a folder: name a file in it")


def write_partition(
    partition: Partition, dataset: Dataset, path: Path, config: Mapping[str, Any] | None = None
) -> Path:
    """Write which client has which samples, and return the file's path.

    The ending of the file's name decides whether it is a table or a figure. A Parquet file is complete:
    partition.kind=file can make the same partition from it. Its metadata have `config`, for people to read.
    """
    if path.suffix.lower() not in TABLES:
        from rayfl.analysis.partition_figure import draw_partition

        return draw_partition(partition, dataset, path)
    table = partition_table(partition, dataset)
    try:
        if path.suffix.lower() == ".csv":
            table.to_csv(path, index=False)
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            rows = pa.Table.from_pandas(table, preserve_index=False)
            pq.write_table(rows.replace_schema_metadata(file_metadata(partition, dataset, config or {})), path)
    except OSError as error:
        raise InputError(f"-o {path} cannot be written: {error.strerror or error}; name another file") from None
    return path


def partition_table(partition: Partition, dataset: Dataset) -> "pd.DataFrame":
    """Return a row per client and sample: client, sample, split, label as the client sees it, cluster, transform.

    Labels, planted clusters and transforms are those before the first round; a transform is its number in
    `partition.transforms`. Public samples have no client. If clients have names, there is a column `name`.
    """
    import pandas as pd

    clients = np.arange(partition.clients)
    splits = {
        "train": (partition.train, np.repeat(clients, partition.n_train)),
        "validation": (partition.validation, np.repeat(clients, partition.n_validation)),
        "test": (partition.test, np.repeat(clients, partition.n_test)),
        "public": (partition.public, np.full(len(partition.public), -1)),
    }
    client = np.concatenate([owner for _, owner in splits.values()])
    sample = np.concatenate([samples for samples, _ in splits.values()])
    nobody = client < 0
    columns: dict[str, object] = {"client": pd.array(client, "Int32")}
    columns["client"][nobody] = pd.NA  # type: ignore[index]
    if partition.client_names is not None:
        names = np.array([*partition.client_names, None], dtype=object)
        columns["name"] = names[client]
    columns["sample"] = sample.astype(np.int64)
    columns["split"] = np.repeat(list(splits), [len(samples) for samples, _ in splits.values()])
    columns["label"] = _seen_labels(partition, dataset, client, sample)
    for name, of_client in (("cluster", partition.true_cluster), ("transform", partition.transform_of)):
        number = np.full(len(client), -1) if of_client is None else of_client[client]
        columns[name] = pd.array(number, "Int32")
        columns[name][nobody | (number < 0)] = pd.NA  # type: ignore[index]
    frame = pd.DataFrame(columns)
    order = np.lexsort((sample, np.where(nobody, partition.clients, client)))
    return frame.iloc[order].reset_index(drop=True)


def _seen_labels(partition: Partition, dataset: Dataset, client: np.ndarray, sample: np.ndarray) -> np.ndarray:
    labels = dataset.labels[sample]
    orders = None if dataset.targets == "number" else partition.label_orders(dataset.classes)
    return labels if orders is None else np.where(client >= 0, orders[client, labels], labels)
