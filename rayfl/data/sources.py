"""Reading data: from scikit-learn, torchvision's sets, or the user's own files, into one `Dataset`.

Everything that can be wrong with a file is told here, in one line that names data.path or data.root and the
cure. Who gets which samples is decided in `partitions`.
"""

import contextlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from rayfl.config import DataConfig
from rayfl.data.dataset import Dataset, Kind, smallest_unsigned
from rayfl.errors import InputError, closest
from rayfl.host_memory import Need, memory_here, refuse_excess
from rayfl.input_tree import expanded
from rayfl.randomness import Purpose, generator

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
WRITERS_FILE = "mnist-writers.csv.gz"
_MOST_CLASSES = 65_536
_LIMIT_STREAM = 1  # keeps the draw of data.limit apart from the partition's own random numbers


@dataclass(frozen=True)
class Samples:
    """What a source yields before it is checked, normalised and cut to data.limit."""

    inputs: np.ndarray
    labels: np.ndarray
    kind: Kind
    is_test: np.ndarray
    owner: np.ndarray | None = None
    owner_names: tuple[str, ...] | None = None
    starts: np.ndarray | None = None
    window: int = 0
    classes: int = 0  # 0: as many as the labels show
    is_validation: np.ndarray | None = None  # None: the source has no such split


def load_dataset(config: DataConfig, seed: int, column: str | None = None) -> Dataset:
    """Read the samples that `config` names; `column` says whose they are, for partitions by owner.

    >>> load_dataset(DataConfig(source="digits"), seed=0).input_shape
    (1, 8, 8)
    """
    if column is not None and config.source not in ("mnist", "parquet", "text"):
        raise InputError(
            f"partition.column={column}: data.source={config.source} does not say whose sample is whose;"
            " partition.kind=natural needs data.source=mnist (column writer), parquet or text"
        )
    where = f"data.path={config.path}" if config.path is not None else f"data.source={config.source}"
    try:
        samples = _READERS[config.source](config, column)
    except (
        ValueError,
        TypeError,
        OverflowError,
        NotImplementedError,
        OSError,
        MemoryError,
        pd.errors.ParserError,
    ) as error:
        # What a reader below did not think of; a file can be wrong in more ways than we know.
        raise InputError(
            f"{where} cannot be read ({type(error).__name__}: {_reason(error)}): check the file"
        ) from error
    labels = _checked_labels(samples.labels, where)
    classes = max(samples.classes, int(labels.max()) + 1)
    samples = replace(samples, labels=smallest_unsigned(labels, classes - 1), classes=classes)
    if config.limit is not None and config.limit < len(labels):
        samples = _limited(samples, config.limit, seed)
    shift, scale = _normalisation(samples, config.normalise)
    return Dataset(shift=shift, scale=scale, **(vars(samples) | {"inputs": np.ascontiguousarray(samples.inputs)}))


def _digits(config: DataConfig, column: str | None) -> Samples:
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return Samples(pixels[:, None], data.target, "image", np.zeros(len(pixels), bool))


def _torchvision(config: DataConfig, column: str | None) -> Samples:
    root = _root(config)
    if config.source == "cifar10" and (root / "cifar10.npz").exists():
        return _read_npz(root / "cifar10.npz", f"data.root={root}: cifar10.npz")
    images, labels = zip(*(_torchvision_split(config.source, root, train) for train in (True, False)), strict=True)
    samples = Samples(
        np.concatenate(images),
        np.concatenate(labels),
        "image",
        np.repeat([False, True], [len(part) for part in labels]),
    )
    return samples if column is None else _with_writers(samples, root, column)


def _torchvision_split(source: str, root: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read one split as uint8 (N, C, H, W) and its labels; fetch the files only if they are not there."""
    from torchvision import datasets

    if source == "svhn":

        def load(download: bool) -> Any:
            return datasets.SVHN(str(root), split="train" if train else "test", download=download)
    else:
        classes = {
            "mnist": datasets.MNIST,
            "fashion_mnist": datasets.FashionMNIST,
            "cifar10": datasets.CIFAR10,
            "cifar100": datasets.CIFAR100,
        }

        def load(download: bool) -> Any:
            return classes[source](str(root), train=train, download=download)

    # torchvision prints its progress; stdout belongs to the results of the command line.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            data = load(download=False)
        except RuntimeError:  # its way to say that files are missing, or not the original ones
            try:
                data = load(download=True)
            except Exception as error:
                raise InputError(
                    f"data.source={source}: no usable files under data.root={root.resolve()}, and the"
                    f" download failed ({_reason(error)}): put the files there, or point data.root or"
                    " $RAYFL_DATA at a folder that has them"
                ) from None
        except Exception as error:
            raise InputError(
                f"data.source={source}: the files under data.root={root.resolve()} are damaged"
                f" ({_reason(error)}): delete them, and put whole ones there or let them be downloaded again"
            ) from None
    images = np.asarray(data.data)
    labels = np.asarray(data.labels if source == "svhn" else data.targets)
    if images.ndim == 3:
        return images[:, None], labels
    return (images if source == "svhn" else images.transpose(0, 3, 1, 2)), labels


def _with_writers(samples: Samples, root: Path, column: str) -> Samples:
    path = root / WRITERS_FILE
    where = f"data.root={root}: {WRITERS_FILE}"
    if not path.exists():
        raise InputError(
            f"partition.column={column}: data.source=mnist needs the file {WRITERS_FILE} in"
            f" data.root={root.resolve()} (columns split, index, label, writer): put it there, or use another"
            " partition.kind"
        )
    table = _read_table(path, where)
    _need_columns(list(table.columns), ["split", "index", "label", column], where, "partition.column")
    position = table["index"].to_numpy() + np.where(table["split"] == "test", np.count_nonzero(~samples.is_test), 0)
    if not np.array_equal(np.sort(position), np.arange(len(samples.labels))):
        raise InputError(f"{where} must name every MNIST image once, by split and index: get a whole copy of it")
    table = table.iloc[np.argsort(position)]
    if not np.array_equal(table["label"].to_numpy(), samples.labels):
        raise InputError(f"{where} has other labels than MNIST itself: get the file that belongs to this copy")
    owner, names = _owners(table, [column], where)
    return replace(samples, owner=owner, owner_names=names)


def _npz(config: DataConfig, column: str | None) -> Samples:
    path, where = _existing(config)
    return _read_npz(path, where)


def _read_npz(path: Path, where: str) -> Samples:
    try:
        with zipfile.ZipFile(path) as archive:  # a small file may unpack to more than there is memory
            unpacked = sum(member.file_size for member in archive.infolist())
        refuse_excess([Need(f"the arrays of {path.name}", unpacked, "the number of samples in it")], memory_here())
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} cannot be read as npz ({_reason(error)}): write it with numpy.savez") from None
    splits = [split for split in ("train", "val", "test") if f"{split}_images" in arrays]
    if "train" not in splits:
        found = ", ".join(arrays) or "nothing"
        raise InputError(
            f"{where} has no train_images (found: {found}): name the arrays train_images, train_labels,"
            " test_images, test_labels as MedMNIST does"
        )
    images, labels = [], []
    for split in splits:
        if f"{split}_labels" not in arrays:
            raise InputError(f"{where} has {split}_images but no {split}_labels: add them to the file")
        images.append(_channels_first(arrays[f"{split}_images"], f"{where}: {split}_images"))
        targets = arrays[f"{split}_labels"]
        if targets.ndim == 2 and targets.shape[1] > 1:
            raise InputError(
                f"{where}: {split}_labels has {targets.shape[1]} labels per image: rayfl needs one class per image"
            )
        labels.append(targets.reshape(-1))
        if len(labels[-1]) != len(images[-1]):
            raise InputError(
                f"{where}: {split}_images has {len(images[-1])} images but {split}_labels {len(labels[-1])}"
                " labels: they must be as many"
            )
    shapes = {part.shape[1:] for part in images}
    if len(shapes) > 1:
        raise InputError(f"{where}: the splits have images of unlike shapes {sorted(shapes)}: make them one size")
    split_of = np.repeat(splits, [len(part) for part in labels])
    return Samples(
        np.concatenate(images),
        np.concatenate(labels),
        "image",
        split_of == "test",
        is_validation=_validation(split_of),
    )


def _validation(split_of: np.ndarray) -> np.ndarray | None:
    """Mark the samples of the source's own validation split; None if it has none."""
    found = split_of == "val"
    return found if found.any() else None


def _channels_first(images: np.ndarray, where: str) -> np.ndarray:
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] > 4):
        raise InputError(f"{where} has shape {images.shape}: it must be (N, H, W) or (N, H, W, C) with C at most 4")
    whole = np.issubdtype(images.dtype, np.integer)
    if not whole or (images.dtype != np.uint8 and images.size and (images.min() < 0 or images.max() > 255)):
        raise InputError(f"{where} must hold whole numbers from 0 to 255, not {images.dtype}: save it as uint8")
    images = images.astype(np.uint8, copy=False)
    return images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)


def _image_folder(config: DataConfig, column: str | None) -> Samples:
    path, where = _existing(config)
    if not path.is_dir():
        raise InputError(f"{where} is a file: data.source=image_folder needs a folder with one folder per class")
    splits = [split for split in ("train", "val", "test") if (path / split).is_dir()]
    parts = [(path / split, split) for split in splits] if "train" in splits else [(path, "train")]
    names = sorted({folder.name for part, _ in parts for folder in _class_folders(part)})
    files = [
        (file, names.index(folder.name), split)
        for part, split in parts
        for folder in _class_folders(part)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        raise InputError(
            f"{where} has no images: it must be laid out as class/*.png, or as train/class/*.png and test/class/*.png"
            " (and val/class/*.png)"
        )
    images = _read_images([file for file, _, _ in files], where)
    labels, split_of = np.array([label for _, label, _ in files]), np.array([split for _, _, split in files])
    return Samples(images, labels, "image", split_of == "test", is_validation=_validation(split_of))


def _class_folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _read_images(files: list[Path], where: str) -> np.ndarray:
    """Read all images, grey if every one is grey, else in colour."""
    from PIL import Image

    arrays: list[np.ndarray] = []
    for file in files:
        try:
            with Image.open(file) as image:
                arrays.append(np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB")))
        except Exception as error:
            raise InputError(f"{where}: {file} is not a readable image ({_reason(error)}): mend or remove it") from None
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (h, w), (first_h, first_w) = arrays[-1].shape[:2], arrays[0].shape[:2]
            raise InputError(
                f"{where}: {file} is {w} x {h} pixels but {files[0]} is {first_w} x {first_h}: resize all to one size"
            )
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2) for array in arrays]
        return np.stack(arrays).transpose(0, 3, 1, 2)
    return np.stack(arrays)[:, None]


def _parquet(config: DataConfig, column: str | None) -> Samples:
    import pyarrow.parquet as pq
    import pyarrow.types as types

    path, where = _existing(config)
    try:
        table = pq.read_table(path)
    except Exception as error:
        raise InputError(
            f"{where} cannot be read as parquet ({_reason(error)}): write it with DataFrame.to_parquet"
        ) from None
    if table.num_rows == 0:
        raise InputError(f"{where} has no rows: write some samples into it")
    owner_columns = _owner_columns(table.column_names, column)
    meta = {field.name for field in table.schema if field.name in (config.label, "split", *owner_columns)}

    def is_list(kind: Any) -> bool:
        return types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind)

    def is_number(kind: Any) -> bool:
        return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)

    lists = [field.name for field in table.schema if field.name not in meta and is_list(field.type)]
    numbers = [field.name for field in table.schema if field.name not in meta and is_number(field.type)]
    for field in table.schema:
        if field.name in lists and not is_number(field.type.value_type):
            raise InputError(
                f"{where}: column '{field.name}' holds {field.type}: a list must hold numbers, not lists or text;"
                " flatten it"
            )
        if field.name in meta and types.is_nested(field.type):
            raise InputError(f"{where}: column '{field.name}' holds {field.type}: it must have one value per row")
    frame = table.select(sorted(meta)).to_pandas()
    _need_columns(table.column_names, [config.label], where, "data.label")
    _need_columns(table.column_names, owner_columns, where, "partition.column")
    if not lists and not numbers:
        raise InputError(f"{where} has no numeric column besides data.label={config.label}: add the features")
    features = [
        _list_column(table.column(name), f"{where}: column '{name}'")
        if lists
        else table.column(name).cast("float64", safe=False).to_numpy()[:, None]
        for name in lists or numbers
    ]
    with np.errstate(over="ignore"):  # what float32 cannot hold is told below
        inputs = np.concatenate(features, axis=1).astype(np.float32)
    if not np.isfinite(inputs).all():
        rows = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
        raise InputError(
            f"{where}: {len(rows)} rows have missing or infinite features, the first is row {rows[0]}:"
            " fill them in or drop the rows (float32 ends at 3.4e38)"
        )
    owner, names = _owners(frame, owner_columns, where) if owner_columns else (None, None)
    labels = frame[config.label].to_numpy()
    if labels.dtype == object or isinstance(frame[config.label].dtype, pd.StringDtype | pd.CategoricalDtype):
        labels = _coded_strings(frame[config.label], where, f"data.label={config.label}")
    split_of = _split_column(frame, where)
    return Samples(inputs, labels, "vector", split_of == "test", owner, names, is_validation=_validation(split_of))


def _list_column(column: Any, where: str) -> np.ndarray:
    """Return a column of equally long lists as a matrix."""
    rows = column.combine_chunks()
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    if rows.null_count or len(np.unique(lengths)) != 1 or lengths[0] == 0:
        raise InputError(f"{where} has missing lists or lists of unlike length: make every list as long")
    return rows.flatten().cast("float64", safe=False).to_numpy(zero_copy_only=False).reshape(len(lengths), -1)


def _coded_strings(values: pd.Series, where: str, key: str) -> np.ndarray:
    if values.isna().any():
        raise InputError(f"{where}: {int(values.isna().sum())} rows have no {key}: fill them in or drop the rows")
    return np.unique(values.astype(str).to_numpy(dtype=object), return_inverse=True)[1]


def _split_column(frame: pd.DataFrame, where: str) -> np.ndarray:
    if "split" not in frame:
        return np.full(len(frame), "train")
    split = frame["split"].astype(str)
    unknown = sorted(set(split) - {"train", "val", "test"})
    if unknown:
        raise InputError(f"{where}: column 'split' holds {unknown[0]!r}: it must be train, val or test, or be renamed")
    return split.to_numpy(dtype=np.str_)


def _text(config: DataConfig, column: str | None) -> Samples:
    path, where = _existing(config)
    if path.suffix == ".txt":
        if column is not None:
            raise InputError(
                f"partition.column={column}: {where} is plain text without owners: use a .csv, .csv.gz or"
                " .parquet table with a column 'text' and the owner's column"
            )
        try:
            texts, names = [path.read_text(encoding="utf-8")], None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where} cannot be read as UTF-8 text ({_reason(error)}): save it as UTF-8") from None
    else:
        table = _read_table(path, where)
        columns = _owner_columns(list(table.columns), column)
        _need_columns(list(table.columns), ["text"], where, "the column")
        _need_columns(list(table.columns), columns, where, "partition.column")
        lines = table["text"].fillna("").astype(str)
        if columns:
            owner, all_names = _owners(table, columns, where)
            joined = lines.groupby(owner).agg(" ".join)
            long_enough = joined.str.len() > config.window
            texts = joined[long_enough].to_list()
            names = tuple(all_names[i] for i in joined.index[long_enough])
        else:
            texts, names = [" ".join(lines)], None
    texts = [text for text in texts if len(text) > config.window]
    if not texts:
        raise InputError(
            f"data.window={config.window} is longer than any text of {where}: use a shorter window or more text"
        )
    return _windows(texts, names, config.window, config.stride)


def _windows(texts: list[str], names: tuple[str, ...] | None, window: int, stride: int) -> Samples:
    """Lay all texts out as one stream of codes, with windows that never cross from one text to the next."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    present = np.zeros(int(points.max()) + 1, bool)
    present[points] = True
    codes = smallest_unsigned((np.cumsum(present) - 1)[points], int(present.sum()) - 1)
    lengths = np.array([len(text) for text in texts])
    first = np.cumsum(lengths) - lengths
    # A window needs the character after it too, as its label.
    windows = (lengths - window - 1) // stride + 1
    before = np.repeat(np.cumsum(windows) - windows, windows)
    starts = np.repeat(first, windows) + (np.arange(windows.sum()) - before) * stride
    owner = None if names is None else np.repeat(np.arange(len(texts), dtype=np.int32), windows)
    return Samples(
        inputs=codes,
        labels=codes[starts + window],
        kind="text",
        is_test=np.zeros(len(starts), bool),
        owner=owner,
        owner_names=names,
        starts=smallest_unsigned(starts, len(codes)),
        window=window,
        classes=int(present.sum()),  # some characters may never be a label, but a model reads them
    )


def _read_table(path: Path, where: str) -> pd.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.name.endswith((".csv", ".csv.gz")):
            # Roles called "NA" or "None" are names, not gaps.
            return pd.read_csv(path, keep_default_na=False)
    except Exception as error:
        raise InputError(f"{where} cannot be read as a table ({_reason(error)}): get a whole copy of it") from None
    raise InputError(f"{where} is of no known kind: use a .txt, .csv, .csv.gz or .parquet file")


def _owner_columns(available: list[str], column: str | None) -> list[str]:
    """The columns that together name the owner: `play+role` is two, unless a column has that very name."""
    if column is None:
        return []
    return [column] if column in available else column.split("+")


def _need_columns(available: list[str], columns: list[str], where: str, key: str) -> None:
    for column in columns:
        if column not in available:
            hint = closest(column, available)
            raise InputError(
                f"{where} has no column '{column}'{hint}: {key} must be one of {', '.join(available) or '(none)'}"
            )


def _owners(table: pd.DataFrame, columns: list[str], where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the owners in the sorted order of their names."""
    for column in columns:
        missing = table[column].isna() | (table[column].astype(str) == "")
        if missing.any():
            raise InputError(
                f"{where}: {int(missing.sum())} rows have no '{column}', the first is row"
                f" {int(missing.argmax())}: fill them in or drop the rows"
            )
    groups = table.groupby(columns if len(columns) > 1 else columns[0], sort=True, observed=True)
    names = tuple("/".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in groups.groups)
    return groups.ngroup().to_numpy().astype(np.int32), names


def _checked_labels(labels: np.ndarray, where: str) -> np.ndarray:
    if len(labels) == 0:
        raise InputError(f"{where} has no samples: there is nothing to learn from")
    if labels.dtype.kind not in "iufb":
        raise InputError(f"{where}: the labels are of type {labels.dtype}: they must be whole numbers from 0")
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
        bad = labels[~np.isfinite(labels) | (labels != np.floor(labels))][0]
        raise InputError(f"{where}: the label {bad} is not a whole number: number the classes 0, 1, 2, ...")
    labels = labels.astype(np.int64)
    if labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(
            f"{where}: the label {bad} is not between 0 and {_MOST_CLASSES - 1}: number the classes 0, 1, 2, ..."
        )
    if labels.min() == labels.max():
        raise InputError(
            f"{where}: all {len(labels)} samples have the label {labels[0]}: there must be at least two classes"
        )
    return labels


def _limited(samples: Samples, limit: int, seed: int) -> Samples:
    chosen = np.sort(generator(seed, Purpose.PARTITION, _LIMIT_STREAM).permutation(len(samples.labels))[:limit])

    def rows(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[chosen]

    return replace(
        samples,
        inputs=samples.inputs if samples.kind == "text" else samples.inputs[chosen],
        labels=samples.labels[chosen],
        is_test=samples.is_test[chosen],
        owner=rows(samples.owner),
        starts=rows(samples.starts),
        is_validation=rows(samples.is_validation),
    )


def _normalisation(samples: Samples, how: Literal["standard", "half", "none"]) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale of `x * scale + shift`: mean 0 and deviation 1, or as data.normalise says."""
    if samples.kind == "text":
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    if how != "standard":
        channels, pixels = samples.inputs.shape[1], samples.kind == "image"
        shift, factor = (-1.0, 2 / 255) if how == "half" else (0.0, 1 / 255 if pixels else 1.0)
        return np.full(channels, shift, np.float32), np.full(channels, factor, np.float32)
    inputs = samples.inputs if samples.is_test.all() else samples.inputs[~samples.is_test]
    if samples.kind == "image":
        # From whole-number histograms: exact on any machine, without a float copy of the images.
        values = np.arange(256, dtype=np.float64)
        counts = np.stack([np.bincount(inputs[:, c].ravel(), minlength=256) for c in range(inputs.shape[1])])
        mean = counts @ values / counts.sum(1)
        deviation = np.sqrt(np.maximum(counts @ values**2 / counts.sum(1) - mean**2, 0))
    else:
        mean = inputs.mean(axis=0, dtype=np.float64)
        deviation = inputs.std(axis=0, dtype=np.float64)
    scale = 1 / np.where(deviation > 1e-12, deviation, 1.0)
    return (-mean * scale).astype(np.float32), scale.astype(np.float32)


def _root(config: DataConfig) -> Path:
    return expanded(config.root or os.environ.get("RAYFL_DATA") or "data")


def _existing(config: DataConfig) -> tuple[Path, str]:
    assert config.path is not None  # the config sees to it
    path = expanded(config.path)
    try:
        found = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise InputError(f"data.path={config.path} cannot be read: {error.strerror}: correct the path") from None
    if not found:
        raise InputError(f"data.path={config.path} does not exist (looked for {path.resolve()}): correct the path")
    return path, f"data.path={config.path}"


def _reason(error: Exception) -> str:
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


_READERS: dict[str, Callable[[DataConfig, str | None], Samples]] = {
    "digits": _digits,
    "mnist": _torchvision,
    "fashion_mnist": _torchvision,
    "cifar10": _torchvision,
    "cifar100": _torchvision,
    "svhn": _torchvision,
    "image_folder": _image_folder,
    "npz": _npz,
    "parquet": _parquet,
    "text": _text,
}
