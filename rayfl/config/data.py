"""Config keys `data.*`: one class per source, with the keys that this source reads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from rayfl.config.section import MOST, Section
from rayfl.config.union import OWN, members, tag_of
from rayfl.errors import shown

#: Keys that version 0.1 saved with every source, whether it read them or not.
_SAVED_WITH_ALL = {"label": "label", "window": 80, "stride": 1}
#: Names that people use for tables: no source has such a name, but some sources read tables.
TABLES = ("tsv", "excel", "xlsx", "xls", "json", "jsonl", "pandas", "dataframe", "table", "tabular", "arrow")
TABLE_HINT = (
    "tables are read by parquet and csv (also with data.separator), npz (arrays x and y), or a function of yours:"
    " data.source=package.module:name"
)

#: One name or several.
Names = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class DataConfig(Section):
    """Where the samples come from: the keys of every source."""

    source: str = Field("digits", description="the data set, the kind of file it is in, or package.module:function")
    root: str | None = Field(
        None, description="folder of the downloaded sets (mnist ... svhn); default: $RAYFL_DATA, else ./data"
    )
    limit: int | None = Field(None, ge=2, le=MOST, description="take only this many samples, drawn by the seed")
    normalise: Literal["standard", "half", "none"] = Field(
        "standard",
        description="standard: mean 0 and deviation 1 per channel or feature; half: (x - 0.5) / 0.5 on pixels in 0..1, "
        "as in the public code of the thesis; none: pixels in 0..1, features as they are; text is never changed",
    )

    @property
    def place(self) -> str:
        """Where the samples are, as messages say it."""
        return f"data.source={self.source}"

    @property
    def may_name_clients(self) -> bool:
        """Whether the source may say by itself whose sample is whose, without partition.column."""
        return False

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_source(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        given = {k: v for k, v in given.items() if v is not None}
        saved_by_01 = given.keys() >= _SAVED_WITH_ALL.keys()
        unused = [key for key in _SAVED_WITH_ALL if key not in cls.model_fields]
        given = {k: v for k, v in given.items() if not (k in unused and (saved_by_01 or v == _SAVED_WITH_ALL[k]))}
        if "path" in cls.model_fields:
            if given.get("path") is None:
                raise ValueError(
                    f"data.path is missing: data.source={given.get('source')} reads a file or folder, say which"
                )
        elif "path" in given:
            source = given.get("source", "digits")
            instead = "hand it to the function in data.options" if ":" in str(source) else "use data.root"
            raise ValueError(f"data.path={given['path']} is not used by data.source={source}: {instead}")
        return given


class DigitsData(DataConfig):
    """scikit-learn's digits."""

    source: Literal["digits"] = "digits"


class TorchvisionData(DataConfig):
    """The well-known sets, in the files that torchvision reads."""

    source: Literal["mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"]


class FileData(DataConfig):
    """Sources that read a file or folder of the user's."""

    path: str = Field(
        description="file or folder of an image_folder, npz, parquet, csv or text source; huggingface: a name on the"
        " hub, a folder made with save_to_disk, or Parquet files, one or a list or a folder of them"
    )

    @property
    def place(self) -> str:
        """The file or folder, as messages say it."""
        return f"data.path={self.path}"


class ImageKeys(DataConfig):
    """What is done with images before anything else."""

    size: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="images: resize all of them to this many pixels in height and width; default: as they are",
    )


class ImageFolderData(FileData, ImageKeys):
    """A folder of images per class."""

    source: Literal["image_folder"] = "image_folder"


class NpzData(FileData):
    """Arrays in a file of numpy's."""

    source: Literal["npz"] = "npz"

    @property
    def may_name_clients(self) -> bool:
        """One of the arrays may be called client."""
        return True


class ColumnKeys(DataConfig):
    """What the columns of a table are for, but the label's."""

    client: str | None = Field(
        None, description="tables: the column that names each row's client, for partition.kind=natural"
    )
    categories: list[str] = Field(
        default_factory=list,
        description="tables: columns that become one feature per value that they have, 1 where a row has it and else 0,"
        " in the sorted order of the values; columns of pandas' type category are such already, in their own order",
    )
    drop: list[str] = Field(default_factory=list, description="tables: columns to leave out")
    missing: Literal["refuse", "mean"] = Field(
        "refuse",
        description="tables: refuse rows without a value; mean: a missing number becomes the mean of its column "
        "outside the source's own test split, and one more feature marks it; a missing category is one more value",
    )

    @property
    def may_name_clients(self) -> bool:
        """A table names the clients if data.client is set."""
        return self.client is not None


class TableKeys(ColumnKeys):
    """What the columns of a table are for."""

    label: str = Field(
        "label",
        description="tables: the column with the class, or the number, of each row; huggingface: by default"
        " the column of classes, else one called label",
    )

    @model_validator(mode="after")
    def _no_pixels(self) -> "TableKeys":
        if self.normalise == "half" and self.source in ("parquet", "csv"):
            raise ValueError(_half(self.source))
        return self


class ParquetData(FileData, TableKeys):
    """A table in a Parquet file."""

    source: Literal["parquet"] = "parquet"


class CsvData(FileData, TableKeys):
    """A table in a text file, a row per line."""

    source: Literal["csv"] = "csv"
    separator: str = Field(",", min_length=1, max_length=1, description="csv: the character between two values")


class TextData(FileData):
    """Text, as windows of characters."""

    source: Literal["text"] = "text"
    window: int = Field(
        80,
        ge=1,
        le=100_000,
        description="text: how many characters are seen before the next one; huggingface: none by default, and text is"
        " then no input",
    )
    stride: int = Field(1, ge=1, le=MOST, description="text: characters between the starts of two windows")

    @model_validator(mode="after")
    def _no_pixels(self) -> "TextData":
        if self.normalise == "half":
            raise ValueError(_half(self.source))
        return self


class SplitNames(Section):
    """Splits of a data set, one or several, by what they are for; others are left out."""

    train: Names = Field(min_length=1, description="huggingface: splits to train on")
    validation: Names = Field(default_factory=list, description="huggingface: splits for validation")
    test: Names = Field(default_factory=list, description="huggingface: splits for testing")


class HuggingFaceData(ColumnKeys, ImageKeys):
    """A data set of Hugging Face's hub, or in its formats."""

    source: Literal["huggingface"] = "huggingface"
    path: str | list[str] = Field(
        description="a name on the hub, a folder made with save_to_disk, or Parquet files, one or a list or a folder"
    )
    revision: str | None = Field(None, description="huggingface: the branch, tag or commit on the hub")
    config_name: str | None = Field(
        None, description="huggingface: which of several parts of a data set, on the hub or in folders of Parquet files"
    )
    splits: SplitNames | None = Field(
        None,
        description="huggingface: the splits by what they are for, such as {train: [train, extra], test: test}; others "
        "are left out. Default: by their names, which must say it",
    )
    input: Names = Field(
        default_factory=list,
        description="huggingface: the column, or columns, with the inputs; default: the images, else all columns that"
        " are for nothing else",
    )
    label: str | None = Field(None, description="the column with the class, or the number, of each row")
    window: int | None = Field(
        None, ge=1, le=100_000, description="predict the next character of a text from this many before it"
    )
    stride: int = Field(1, ge=1, le=MOST, description="characters between the starts of two windows")

    @property
    def place(self) -> str:
        """The name or the files, as messages say it."""
        return f"data.path={self.path if isinstance(self.path, str) else shown(self.path)}"


class PythonData(DataConfig):
    """Data that a Python program handed to `rayfl.run`; the config only says which they were."""

    source: Literal["python"] = "python"
    digest: str = Field(min_length=8, max_length=64, description="python: what tells these data from others")

    @property
    def may_name_clients(self) -> bool:
        """Objects may name the clients."""
        return True

    @model_validator(mode="before")
    @classmethod
    def _from_python(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("digest") is None:
            raise ValueError("data.source=python stands for data of a Python program: use rayfl.run(data=...) there")
        return given


class OwnData(TableKeys):
    """What a function of a user's own returns."""

    source: str = Field(description="package.module:function", pattern=":")
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the function")

    @property
    def may_name_clients(self) -> bool:
        """A function may return clients."""
        return True


def _half(source: str) -> str:
    return f"data.normalise=half is for the pixels of images, and data.source={source} has none: use standard or none"


AnyData = Annotated[
    Annotated[DigitsData, Tag("source=digits")]
    | Annotated[TorchvisionData, Tag("source=mnist")]
    | Annotated[TorchvisionData, Tag("source=fashion_mnist")]
    | Annotated[TorchvisionData, Tag("source=cifar10")]
    | Annotated[TorchvisionData, Tag("source=cifar100")]
    | Annotated[TorchvisionData, Tag("source=svhn")]
    | Annotated[ImageFolderData, Tag("source=image_folder")]
    | Annotated[NpzData, Tag("source=npz")]
    | Annotated[ParquetData, Tag("source=parquet")]
    | Annotated[CsvData, Tag("source=csv")]
    | Annotated[TextData, Tag("source=text")]
    | Annotated[HuggingFaceData, Tag("source=huggingface")]
    | Annotated[PythonData, Tag("source=python")]
    | Annotated[OwnData, Tag("source=package.module:function")],
    Discriminator(tag_of("source", "digits", OWN + "function", DataConfig)),
]

#: The section of each source by name.
DATA: dict[str, Any] = {name: section for name, section in members(AnyData).items() if ":" not in name}
