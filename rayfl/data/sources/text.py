"""Text as windows of characters and the character that follows."""

from pathlib import Path

import numpy as np

from rayfl.config import DataConfig
from rayfl.config.data import TextData
from rayfl.data.dataset import smallest_unsigned
from rayfl.data.sources.files import existing
from rayfl.data.sources.samples import Samples, reason
from rayfl.data.sources.tables import need_columns, owner_columns_of, owners_of, read_table
from rayfl.errors import InputError


class Text:
    """Characters, each to be predicted from those before it."""

    numbers = False
    owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read a .txt file, or the column text of a table."""
        assert isinstance(config, TextData)
        texts, names = _texts(existing(config), config.place, column, config.window)
        return _windows(texts, names, config.window, config.stride)


def _texts(path: Path, where: str, column: str | None, window: int) -> tuple[list[str], tuple[str, ...] | None]:
    """Return the texts that are longer than a window, and their owners' names where there are owners."""
    if path.suffix == ".txt":
        if column is not None:
            raise InputError(
                f"partition.column={column}: {where} is plain text without owners: use a .csv, .csv.gz or"
                " .parquet table with a column 'text' and the owner's column"
            )
        try:
            texts, names = [path.read_text(encoding="utf-8")], None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where} cannot be read as UTF-8 text ({reason(error)}): save it as UTF-8") from None
    else:
        table = read_table(path, where)
        columns = owner_columns_of(list(table.columns), column)
        need_columns(list(table.columns), ["text"], where, "the column")
        need_columns(list(table.columns), columns, where, "partition.column")
        lines = table["text"].fillna("").astype(str)
        if columns:
            owner, all_names = owners_of(table, columns, where)
            joined = lines.groupby(owner).agg(" ".join)
            long_enough = joined.str.len() > window
            texts = joined[long_enough].to_list()
            names = tuple(all_names[i] for i in joined.index[long_enough])
        else:
            texts, names = [" ".join(lines)], None
    texts = [text for text in texts if len(text) > window]
    if not texts:
        raise InputError(f"data.window={window} is longer than any text of {where}: use a shorter window or more text")
    return texts, names


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
