"""What a run leaves behind: table schemas, the folder they lie in, the streaming writer, the reader, saved models.

Knows files and tables only. What the numbers mean is in `rayfl.client` and `rayfl.analysis`; checkpoints go
through `Storage` too, but what is in them is the engine's business.
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
