"""`rayfl export`: a run's numbers for other tools, read from its Parquet files only. One module per tool."""

from rayfl.following.export.exporting import TARGETS, export

__all__ = ["TARGETS", "export"]
