"""Text as windows of characters and the character that follows."""

from pathlib import Path

import numpy as np
import pandas as pd

from rayfl.config import DataConfig
from rayfl.config.data import TextData
from rayfl.data.dataset import smallest_unsigned
from rayfl.data.sources.files import existing
from rayfl.data.sources.owners import need_columns, owner_columns_of, owners_of
from rayfl.data.sources.samples import Samples, reason
from rayfl.data.sources.tables import read_table
from rayfl.errors import InputError


class Text:
    """Characters, each to be predicted from those before it."""

    numbers = False
    owners = True

    def load(self, config: DataConfig, column: str | None) -> Samples:
        """Read a .txt file, or the column text of a table."""
        assert isinstance(config, TextData)
        texts, names = _texts(existing(config), config.place, column, config.window)
        return windows_of(texts, names, config.window, config.stride)


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
        texts, names = texts_of(table, "text", columns, where)
    return long_enough(texts, names, window, where)


def texts_of(
    table: pd.DataFrame, text: str, owner_columns: list[str], where: str
) -> tuple[list[str], tuple[str, ...] | None]:
    """Return the column `text` joined by owner, with the owners' names; without owners, as one text."""
    lines = table[text].fillna("").astype(str)
    if not owner_columns:
        return [" ".join(lines)], None
    owner, names = owners_of(table, owner_columns, where)
    return lines.groupby(owner).agg(" ".join).to_list(), names


def long_enough(
    texts: list[str], names: tuple[str, ...] | None, window: int, where: str
) -> tuple[list[str], tuple[str, ...] | None]:
    """Leave out texts that are too short for a window and the character after it, and their owners."""
    kept = [number for number, text in enumerate(texts) if len(text) > window]
    if not kept:
        raise InputError(f"data.window={window} is longer than any text of {where}: use a shorter window or more text")
    return [texts[number] for number in kept], None if names is None else tuple(names[number] for number in kept)


def windows_of(texts: list[str], names: tuple[str, ...] | None, window: int, stride: int) -> Samples:
    """Lay all texts out as one stream of codes, with windows that never cross from one text to the next."""
    codes, vocabulary = _codes("".join(texts))
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
        classes=vocabulary,  # some characters may never be a label, but a model reads them
    )


def given_windows(texts: list[str], following: list[str]) -> Samples:
    """Return equally long texts, each with the character that follows it."""
    window = len(texts[0])
    codes, vocabulary = _codes("".join([*texts, *following]))
    return Samples(
        inputs=codes[: window * len(texts)],
        labels=codes[window * len(texts) :],
        kind="text",
        is_test=np.zeros(len(texts), bool),
        starts=smallest_unsigned(np.arange(len(texts)) * window, len(codes)),
        window=window,
        classes=vocabulary,
    )


def _codes(text: str) -> tuple[np.ndarray, int]:
    """Return a text as codes from 0, in the order of Unicode, and how many different characters occur."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    present = np.zeros(int(points.max()) + 1, bool)
    present[points] = True
    vocabulary = int(present.sum())
    return smallest_unsigned((np.cumsum(present) - 1)[points], vocabulary - 1), vocabulary
