"""Read data into one `Dataset`: from scikit-learn, torchvision, Hugging Face, files, or a user's code or objects.

Everything that can be wrong with a file is reported here, in one line that names data.path or data.root and says what
to do. Who gets which samples is decided in `rayfl.data.partition`.
"""

import pandas as pd

from rayfl.config import DataConfig
from rayfl.data.dataset import Dataset, Targets
from rayfl.data.sources.csv import Csv
from rayfl.data.sources.digits import Digits
from rayfl.data.sources.huggingface import HuggingFace
from rayfl.data.sources.image_folder import ImageFolder
from rayfl.data.sources.npz import Npz
from rayfl.data.sources.objects import Data
from rayfl.data.sources.own import FromPython, OwnFunction, given_data
from rayfl.data.sources.parquet import Parquet
from rayfl.data.sources.samples import Samples, Source, finished, reason
from rayfl.data.sources.text import Text
from rayfl.data.sources.torchvision_sets import TorchvisionSet
from rayfl.errors import InputError

__all__ = ["SOURCES", "Data", "Samples", "Source", "given_data", "load_dataset"]

#: The sources by name; any other is an import path.
SOURCES: dict[str, Source] = {
    "digits": Digits(),
    "mnist": TorchvisionSet(owners=True),
    "fashion_mnist": TorchvisionSet(),
    "cifar10": TorchvisionSet(),
    "cifar100": TorchvisionSet(),
    "svhn": TorchvisionSet(),
    "image_folder": ImageFolder(),
    "npz": Npz(),
    "parquet": Parquet(),
    "csv": Csv(),
    "text": Text(),
    "huggingface": HuggingFace(),
    "python": FromPython(),
}


def load_dataset(config: DataConfig, seed: int, column: str | None = None, targets: Targets = "class") -> Dataset:
    """Read the samples that `config` names; `column` says whose they are, for partitions by owner.

    With `targets="number"` labels are numbers to predict, else classes.

    >>> from rayfl.config import data_config
    >>> load_dataset(data_config(source="digits"), seed=0).input_shape
    (1, 8, 8)
    """
    source = SOURCES.get(config.source) or OwnFunction()
    if column is not None and not source.owners:
        raise InputError(
            f"partition.column={column}: data.source={config.source} does not say whose sample is whose;"
            " partition.kind=natural needs data.source=mnist (column writer), parquet, csv, huggingface or text, or"
            " data of your own"
        )
    if targets == "number" and not source.numbers:
        raise InputError(
            f"data.source={config.source} has classes, and the task predicts numbers: use parquet, csv, huggingface,"
            " npz or data of your own, or task=classification"
        )
    try:
        samples = source.load(config, column)
    except (
        ValueError,
        TypeError,
        OverflowError,
        NotImplementedError,
        OSError,
        MemoryError,
        pd.errors.ParserError,
    ) as error:
        # Errors that a reader did not foresee: a file can be wrong in more ways than we know.
        raise InputError(
            f"{config.place} cannot be read ({type(error).__name__}: {reason(error)}): check the file"
        ) from error
    if config.normalise == "half" and samples.kind == "vector":
        raise InputError(
            f"data.normalise=half is for the pixels of images, and {config.place} has none: use standard or none"
        )
    return finished(samples, config, seed, targets, config.place if config.source != "python" else "data")
