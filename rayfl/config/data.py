"""Config keys `data.*`."""

from typing import Literal

from pydantic import Field, model_validator

from rayfl.config.section import MOST, Section

Source = Literal[
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "image_folder",
    "npz",
    "parquet",
    "text",
]


class DataConfig(Section):
    """Where the samples come from."""

    source: Source = Field("digits", description="the data set, or the kind of file it is in")
    root: str | None = Field(
        None, description="folder of the downloaded sets (mnist ... svhn); default: $RAYFL_DATA, else ./data"
    )
    path: str | None = Field(None, description="file or folder of an image_folder, npz, parquet or text source")
    label: str = Field("label", description="parquet: the column with the class of each row")
    window: int = Field(80, ge=1, le=100_000, description="text: how many characters are seen before the next one")
    stride: int = Field(1, ge=1, le=MOST, description="text: characters between the starts of two windows")
    limit: int | None = Field(None, ge=2, le=MOST, description="take only so many samples, drawn by the seed")
    normalise: Literal["standard", "half", "none"] = Field(
        "standard",
        description="standard: mean 0 and deviation 1 per channel or feature; half: (x - 0.5) / 0.5 on pixels in 0..1, "
        "as in the public code of the thesis; none: pixels in 0..1, features as they are; text is never changed",
    )

    @model_validator(mode="after")
    def _path_where_needed(self) -> "DataConfig":
        if self.source in ("image_folder", "npz", "parquet", "text") and self.path is None:
            raise ValueError(f"data.path is missing: data.source={self.source} reads a file or folder, say which")
        if self.path is not None and self.source not in ("image_folder", "npz", "parquet", "text"):
            raise ValueError(f"data.path={self.path} is not used by data.source={self.source}: use data.root")
        if self.normalise == "half" and self.source in ("parquet", "text"):
            raise ValueError(
                f"data.normalise=half is for the pixels of images, and data.source={self.source} has none: use standard"
                " or none"
            )
        return self
