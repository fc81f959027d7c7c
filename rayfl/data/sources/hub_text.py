"""Text columns of Hugging Face data sets: windows of characters and the character that follows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from rayfl.config.data import HuggingFaceData
from rayfl.data.sources.owners import need_columns, owner_columns_of, owners_of
from rayfl.data.sources.samples import Samples, validation_split
from rayfl.data.sources.text import given_windows, long_enough, texts_of, windows_of
from rayfl.errors import InputError


def read_text(data: Any, name: str, config: HuggingFaceData, column: str | None, split_of: np.ndarray) -> Samples:
    """Return windows over the text in column `name`, or its rows as windows if data.label has the next character.

    Windows are cut from the joined rows of one owner and split, in their order.
    """
    where = config.place
    key = "data.client" if column is None else "partition.column"
    owner_columns = owner_columns_of(data.column_names, column if column is not None else config.client)
    need_columns(data.column_names, owner_columns, where, key)
    labels = [] if config.label is None else [config.label]
    need_columns(data.column_names, labels, where, "data.label")
    frame = data.select_columns(list(dict.fromkeys([name, *owner_columns, *labels]))).to_pandas()
    if config.window is None and config.label is None:
        raise InputError(
            f"{where}: column '{name}' holds text: data.window=80 predicts each character from the 80 before it, and"
            f" data.categories=[{name}] makes one feature per value of it; of other texts, make numbers before"
        )
    if config.window is not None and config.label is not None:
        raise InputError(
            f"data.label={config.label} and data.window={config.window} do not go together: with a window, the labels"
            " are the characters that follow; remove one"
        )
    if config.label is None:
        return _cut(frame, name, owner_columns, config, split_of)
    return _as_given(frame, name, owner_columns, config, split_of)


def _cut(
    frame: pd.DataFrame, name: str, owner_columns: list[str], config: HuggingFaceData, split_of: np.ndarray
) -> Samples:
    """Cut windows out of the texts of each split and owner."""
    assert config.window is not None
    owner, owner_names = owners_of(frame, owner_columns, config.place) if owner_columns else (None, None)
    texts: list[str] = []
    whose: list[int] = []
    splits: list[str] = []
    for split in dict.fromkeys(split_of.tolist()):
        rows = split_of == split
        found, _ = texts_of(frame[rows], name, owner_columns, config.place)
        texts += found
        whose += [0] if owner is None else np.unique(owner[rows]).tolist()
        splits += [split] * len(found)
    # Here the texts are passed as the owners of their windows, so that the split of each window can be found.
    texts, kept = long_enough(texts, tuple(map(str, range(len(texts)))), config.window, config.place)
    assert kept is not None
    samples = windows_of(texts, kept, config.window, config.stride)
    assert samples.owner is not None
    text_of = np.array([int(number) for number in kept])[samples.owner]
    split_of = np.array(splits)[text_of]
    return replace(
        samples,
        owner=None if owner is None else np.array(whose, np.int32)[text_of],
        owner_names=owner_names,
        is_test=split_of == "test",
        is_validation=validation_split(split_of),
    )


def _as_given(
    frame: pd.DataFrame, name: str, owner_columns: list[str], config: HuggingFaceData, split_of: np.ndarray
) -> Samples:
    """Take each row as a window, with the one character that follows it."""
    texts, following = frame[name], frame[config.label]
    good = texts.map(lambda text: isinstance(text, str) and len(text) == len(texts[0]) > 0).all()
    if not good or not following.map(lambda label: isinstance(label, str) and len(label) == 1).all():
        raise InputError(
            f"{config.place}: column '{name}' holds text, so data.label={config.label} must hold the one character that"
            " follows each, and all texts must be as long: for classes of texts, make numbers of them before"
        )
    owner, names = owners_of(frame, owner_columns, config.place) if owner_columns else (None, None)
    return replace(
        given_windows(texts.to_list(), following.to_list()),
        owner=owner,
        owner_names=names,
        is_test=split_of == "test",
        is_validation=validation_split(split_of),
    )
