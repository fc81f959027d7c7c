"""What is kept of finished sweeps: a few Parquet files per sweep file and set, from which runs can be read again.

results/cam/table_1-small/runs.parquet      config and fingerprints of each run
results/cam/table_1-small/rounds.parquet    all rounds; clusters.parquet, clients.parquet, sketches.parquet: see KEPT
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfl.config import Config, load_config
from rayfl.errors import InputError
from rayfl.input_tree import load_yaml
from rayfl.results import Run, load_all
from rayfl.results.fingerprints import NOTE
from rayfl.results.schema import SKETCHES, tables
from rayfl.sweeping.plan import planned_sweep

EXPERIMENTS = Path(__file__).resolve().parents[1]
SCHEMAS = {**tables(), "sketches": SKETCHES}
TABLES = ("rounds", "clients", "clusters", "sketches")
#: Evaluated rounds of which the clients' rows are kept: by so many a run is judged at most.
LAST_TESTS = 3
#: Of sketches, the first rounds, which figures of the thesis show, and the last one.
FIRST_ROUNDS = 4
#: Sweeps whose figures show every client in every round.
ALL_CLIENTS = ("thesis/figure_3_5", "thesis/figure_7_5")


@dataclass(frozen=True)
class Sweep:
    """A sweep file and a set of it, or none; written `cam/table_1` and `cam/table_1-small`."""

    name: str
    set: str = ""

    @classmethod
    def of(cls, file: str | Path, chosen: str = "") -> "Sweep":
        """Find the sweep of a file below experiments/."""
        path = Path(file).resolve()
        if not path.is_file() or not path.is_relative_to(EXPERIMENTS):
            raise InputError(f"{file} is not a sweep file below {EXPERIMENTS}: name one of them")
        return cls(same_runs(path.relative_to(EXPERIMENTS).with_suffix("").as_posix()), chosen)

    @property
    def label(self) -> str:
        """The name with the set."""
        return f"{self.name}-{self.set}" if self.set else self.name

    @property
    def command(self) -> str:
        """How to carry it out."""
        return f"rayfl sweep experiments/{self.name}.yaml" + (f" --set {self.set}" if self.set else "")

    @property
    def folder(self) -> str:
        """Where its runs are, as the file says."""
        return str(self.configs()[0].output.dir)

    def configs(self, seeds: Sequence[int] = ()) -> list[Config]:
        """Return the configs of its runs, with the seeds of the file or with others."""
        path = EXPERIMENTS / f"{self.name}.yaml"
        others = {"seed": list(seeds)} if seeds else {}
        return [run.config for run in planned_sweep(path, others, [self.set] if self.set else [])]


def same_runs(name: str) -> str:
    """Return the file that a file has its runs from: one that is nothing but a `base` has the same runs as that."""
    path = EXPERIMENTS / f"{name}.yaml"
    tree = load_yaml(path.read_text(), str(path))
    if isinstance(tree, dict) and tree.keys() == {"base"} and isinstance(tree["base"], str):
        return same_runs((path.parent / tree["base"]).resolve().relative_to(EXPERIMENTS).with_suffix("").as_posix())
    return name


def collect(sweep: Sweep, results: Path, folder: str | None = None) -> Path:
    """Keep what the pages need of a sweep's finished runs; `folder` is where they are, if not where the file says.

    Runs belong to the sweep by their names, whatever their seeds: a folder may hold runs of other tables too. Runs that
    were kept before, and are not in the folder, stay: a sweep may be carried out in parts, on several machines.
    """
    with unpacked(sweep, results) as before:
        return _collect(sweep, results / sweep.label, folder or sweep.folder, before)


def _collect(sweep: Sweep, target: Path, where: str, before: Sequence[Run]) -> Path:
    found = {Path(run.path).name: run for run in load_all(where) if run.finished}
    seeds = sorted({run.config.seed for run in found.values()})
    new = {name: found[name] for name in sorted({str(config.name) for config in sweep.configs(seeds)} & found.keys())}
    if not new:
        raise InputError(f"{where} has no finished run of {sweep.label}: carry it out with {sweep.command}")
    every = {Path(run.path).name: run for run in before} | new
    runs = [every[name] for name in sorted(every)]
    target.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "run": Path(run.path).name,
            "config": _portable(run, sweep).to_yaml(),
            "fingerprints": json.dumps(run.fingerprints._asdict()) if run.fingerprints else "",
        }
        for run in runs
    ]
    _write(pd.DataFrame(rows), target / "runs.parquet")
    whole = sweep.name in ALL_CLIENTS
    for table in TABLES:
        parts = [_kept(run, table, whole) for run in runs]
        frames = [part.assign(run=Path(run.path).name) for run, part in zip(runs, parts, strict=True) if len(part)]
        (target / f"{table}.parquet").unlink(missing_ok=True)
        if frames:
            _write(pd.concat(frames, ignore_index=True), target / f"{table}.parquet")
    return target


def _portable(run: Run, sweep: Sweep) -> Config:
    """Return the config of a run as the sweep has it, wherever the run's folder was on the machine."""
    return load_config(run.config, {"name": Path(run.path).name, "output.dir": sweep.folder})


def collected(results: Path) -> list[Sweep]:
    """Return the sweeps that something is kept of."""
    found = []
    for path in sorted(results.glob("*/*/runs.parquet")):
        name, _, chosen = path.parent.relative_to(results).as_posix().partition("-")
        found.append(Sweep(name, chosen))
    return found


@contextmanager
def unpacked(sweep: Sweep, results: Path) -> Iterator[list[Run]]:
    """Give the kept runs back as runs, in folders that are there as long as the context."""
    tables = _tables(results / sweep.label)
    with TemporaryDirectory(prefix="rayfl-pages-") as folder:
        for row in tables.pop("runs").to_pylist() if tables else []:
            _unpack(row, tables, Path(folder, row["run"]))
        yield load_all(folder)


def _tables(source: Path) -> dict[str, pa.Table]:
    """What is kept of a sweep, by table."""
    files = {name: source / f"{name}.parquet" for name in ("runs", *TABLES)}
    return {name: pq.read_table(file) for name, file in files.items() if file.exists()}


def _kept(run: Run, table: str, whole: bool) -> pd.DataFrame:
    if table == "sketches":
        rows = run.sketches
        return rows[(rows["round"] <= FIRST_ROUNDS) | (rows["round"] == rows["round"].max())]
    rows = getattr(run, table)
    if table != "clients" or whole:
        return rows
    tested = sorted(rows.loc[rows["accuracy"].notna(), "round"].unique())[-LAST_TESTS:]
    return rows[rows["round"].isin(tested)]


def _write(frame: pd.DataFrame, path: Path) -> None:
    known = SCHEMAS.get(path.stem, pa.schema([]))  # pandas forgets types: numbers with gaps become floats
    found = pa.Schema.from_pandas(frame, preserve_index=False)
    fields = [known.field(name) if name in known.names else _plain(found.field(name)) for name in frame.columns]
    table = pa.Table.from_pandas(frame, pa.schema(fields), preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path, compression="zstd")


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field


def _unpack(row: dict[str, str], tables: dict[str, pa.Table], folder: Path) -> None:
    for name in ("rounds", "clients", "clusters"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text(row["config"])
    for name, table in tables.items():
        mine = table.filter(pc.equal(table["run"], row["run"]))
        (folder / name).mkdir(exist_ok=True)
        notes = {NOTE: row["fingerprints"]} if row["fingerprints"] else None
        pq.write_table(mine.replace_schema_metadata(notes), folder / name / "part.parquet")


def check_names(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuse names in the hand-written files that nothing has."""
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{what} names {unknown[0]}, which does not exist: use one of {', '.join(known)}")
