"""`rayfl export`: a run's numbers for other tools, from its Parquet alone. One module per tool."""

from rayfl.following.export.exporting import TARGETS, export

__all__ = ["TARGETS", "export"]
