"""Finding the splits of a Hugging Face data set: on the hub, in a folder of `save_to_disk`, or in Parquet files."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config.data import HuggingFaceData, SplitNames
from rayfl.data.sources.samples import reason
from rayfl.errors import InputError
from rayfl.input_tree import expanded

#: What a split is for, by its name or by a word in the name of its file, as on the hub.
_ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_INSTALL = "data.source=huggingface needs the package datasets: install rayfl[hf]"


def read_splits(config: HuggingFaceData) -> tuple[Any, np.ndarray]:
    """Return all rows that are used as one `datasets.Dataset`, and for each whether it is train, val or test."""
    try:
        import datasets
    except ImportError:
        raise InputError(_INSTALL) from None

    found = _found(config)
    roles = _roles(list(found), config.splits, config.place)
    parts = [(role, found[name]) for role, name in roles if len(found[name])]
    if not parts:
        raise InputError(f"{config.place} has no rows: there is nothing to learn from")
    try:
        data = datasets.concatenate_datasets([part for _, part in parts])
    except ValueError as error:
        raise InputError(
            f"{config.place}: the splits have other columns or types ({reason(error)}): leave some out with data.splits"
        ) from None
    return data, np.repeat([role for role, _ in parts], [len(part) for _, part in parts])


def _roles(names: list[str], given: SplitNames | None, where: str) -> list[tuple[str, str]]:
    """Return the splits that are used, each with what it is for."""
    if given is not None:
        asked = [("train", given.train), ("val", given.validation), ("test", given.test)]
        chosen = [(role, name) for role, several in asked for name in several]
        for number, (_, name) in enumerate(chosen):
            if name not in names:
                raise InputError(f"{where} has no split '{name}': data.splits can name {', '.join(names)}")
            if name in [other for _, other in chosen[:number]]:
                raise InputError(f"data.splits names '{name}' twice: no sample is for two things")
        return chosen
    if len(names) == 1:  # whatever its name is, there is no other split
        return [("train", names[0])]
    roles = [(_ROLES.get(name.lower(), ""), name) for name in names]
    if [role for role, _ in roles].count("train") != 1 or "" in [role for role, _ in roles]:
        raise InputError(
            f"{where} has the splits {', '.join(names)}: say what they are for, such as data.splits={{train:"
            f" {names[0]}, test: {names[-1]}}}; others are left out"
        )
    return roles


def _found(config: HuggingFaceData) -> dict[str, Any]:
    """Return the splits by name, wherever they are."""
    where = config.place
    if not isinstance(config.path, str):
        return _from_parquet([expanded(path) for path in config.path], None, config)
    path = expanded(config.path)
    try:
        here = path.exists()
    except OSError as error:  # a name that is too long
        raise InputError(f"{where} cannot be read: {error.strerror}: correct it") from None
    if not here:
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", config.path) and not config.path.endswith(".parquet"):
            return _from_hub(config)
        raise InputError(f"{where} does not exist (looked for {path.resolve()}), and is no name on the hub: correct it")
    if path.is_file():
        return _from_parquet([path], None, config)
    saved = [name for name in ("dataset_dict.json", "state.json") if (path / name).exists()]
    if saved:
        return _from_disk(path, config)
    root = path if config.config_name is None else path / config.config_name
    files = sorted(file for file in root.rglob("*.parquet") if not _is_hidden(file.relative_to(root)))
    if not files:
        inside = "" if config.config_name is None else f" in data.config_name={config.config_name}"
        raise InputError(
            f"{where} has no Parquet files{inside}, and was not made with save_to_disk: make it with that, or correct"
            " the path"
        )
    return _from_parquet(files, root, config)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _from_hub(config: HuggingFaceData) -> dict[str, Any]:
    """Load a data set by name: from the library's cache, or from the hub."""
    import datasets

    where = config.place
    try:
        loaded = datasets.load_dataset(str(config.path), config.config_name, revision=config.revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise InputError(
            f"{where} is no folder here, and the hub has no such data set for you ({reason(error)}): correct the name,"
            " or log in with 'hf auth login'"
        ) from None
    except OSError as error:  # also if there is no connection
        raise InputError(
            f"{where} is no folder here, and cannot be loaded from the hub ({reason(error)}): check the name and the"
            " network, or make a folder where there is one, with load_dataset(...).save_to_disk(folder), and name that"
        ) from None
    except Exception as error:
        lines = " ".join(str(error).split())  # the second line lists the configs
        raise InputError(
            f"{where} cannot be loaded ({lines[:400]}): check data.config_name and data.revision"
        ) from None
    return dict(loaded)


def _from_disk(path: Path, config: HuggingFaceData) -> dict[str, Any]:
    import datasets

    for key in ("revision", "config_name"):
        if getattr(config, key) is not None:
            raise InputError(
                f"data.{key}={getattr(config, key)} is not used: {config.place} is a folder of save_to_disk; remove it"
            )
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:
        raise InputError(
            f"{config.place} cannot be read ({reason(error)}): make the folder again with save_to_disk"
        ) from None
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _from_parquet(files: list[Path], root: Path | None, config: HuggingFaceData) -> dict[str, Any]:
    """Read Parquet files, whose names or folders say to which split they belong."""
    import datasets
    import pyarrow.parquet as pq

    where = config.place
    if config.revision is not None:
        raise InputError(f"data.revision={config.revision} is for names on the hub, and {where} is here: remove it")
    if config.config_name is not None and root is None:
        raise InputError(f"data.config_name={config.config_name} is not used with a list of files: remove it")
    split_of = [_split_of_file(file.relative_to(root) if root is not None else Path(file.name)) for file in files]
    if root is not None:
        _refuse_several_sets(files, root, where)
    if any(split_of) and not all(split_of):
        unknown = files[split_of.index("")]
        raise InputError(f"{where}: the name of {unknown.name} does not say train, validation or test as others do")
    found = {}
    for split in dict.fromkeys(split_of):
        names = [str(file) for file, of in zip(files, split_of, strict=True) if of == split]
        try:
            found[split or "train"] = datasets.Dataset(pq.read_table(names))
        except Exception as error:
            raise InputError(
                f"{where} cannot be read as parquet ({reason(error)}): get a complete copy of it"
            ) from None
    return found


def _split_of_file(path: Path) -> str:
    """Return the split that a file's name says, else that of the nearest folder; an empty text if none does.

    >>> _split_of_file(Path("data/train-00000-of-00002.parquet")), _split_of_file(Path("test/0000.parquet"))
    ('train', 'test')
    """
    for part in (path.name, *reversed(path.parent.parts)):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _ROLES:
                return {"train": "train", "val": "validation", "test": "test"}[_ROLES[word]]
    return ""


def _refuse_several_sets(files: list[Path], root: Path, where: str) -> None:
    """Refuse folders that hold different data sets: their rows would be mixed."""
    folders = {file.relative_to(root).parent for file in files}
    sets = {
        tuple(part for part in folder.parts if part != "data" and not _split_of_file(Path(part))) for folder in folders
    }
    if len(sets) > 1:
        names = sorted({"/".join(parts) or "." for parts in sets})
        raise InputError(f"{where} has several data sets, in {', '.join(names)}: say which with data.config_name")
