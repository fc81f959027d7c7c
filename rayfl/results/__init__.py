"""What a run writes to disk: table schemas, its folder, the streaming writer, the reader, saved models.

This package handles files and tables only. The meaning of the numbers is in `rayfl.client` and `rayfl.analysis`.
Checkpoints are written through `Storage` too, but their content is defined in `rayfl.simulation`.
"""

from rayfl.results.client_names import write_client_names
from rayfl.results.fingerprints import Fingerprints
from rayfl.results.reader import Run, load, load_all, load_begun
from rayfl.results.schema import TABLES
from rayfl.results.stopped import StoppedEarly, read_stopped, write_stopped
from rayfl.results.storage import Storage
from rayfl.results.writer import RunWriter, TableWriter, check_tables, run_name, take_back, written_config

__all__ = [
    "TABLES",
    "Fingerprints",
    "Run",
    "RunWriter",
    "StoppedEarly",
    "Storage",
    "TableWriter",
    "check_tables",
    "load",
    "load_all",
    "load_begun",
    "read_stopped",
    "run_name",
    "take_back",
    "write_client_names",
    "write_stopped",
    "written_config",
]
