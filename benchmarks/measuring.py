"""What the benchmarks share: taking turns, ratios, the table on the screen and the rows in Parquet.

Times of one run on one machine mean little elsewhere, so every figure is a ratio between sides that took turns.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(os.environ.get("RAYFL_BENCHMARK_RESULTS") or Path(__file__).parent / "results")
PACKAGES = ("rayfl", "ray", "torch", "numpy", "scipy")

# Ray starts its workers at nice 15. Any other process on the machine would then slow them down and distort the ratios.
# This must be set before Ray starts, also for every framework that is built on Ray.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.pop("RAY_ADDRESS", None)  # always start a new Ray: an existing one may have other work

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Row:
    """One measurement: the median of `repetitions`, and its ratio to a reference that took turns with it."""

    what: str
    variant: str
    figure: str
    seconds: float | None = None
    reference: str | None = None
    reference_seconds: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    megabytes: float | None = None
    repetitions: int = 1
    extrapolated: bool = False
    note: str | None = None


_TYPES: dict[Any, pa.DataType] = {
    float | None: pa.float64(),
    str | None: pa.string(),
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
}


@dataclass
class Report:
    """The rows of one benchmark, as they come in."""

    benchmark: str
    quick: bool
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Add rows, and write all rows so far to disk, because a long benchmark may be interrupted."""
        self.rows += rows
        common = {
            "benchmark": self.benchmark,
            "quick": self.quick,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "python": platform.python_version(),
            **{name: installed(name) for name in PACKAGES},
            "others": ", ".join(f"{name} {number}" for name, number in self.versions.items()) or None,
        }
        schema = pa.schema([(f.name, _TYPES[f.type]) for f in fields(Row)])
        table = pa.Table.from_pylist([asdict(row) for row in self.rows], schema)
        for name, value in common.items():
            table = table.append_column(name, pa.array([value] * len(self.rows), pa.scalar(value).type))
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self.benchmark}{'-quick' * self.quick}.parquet"
        aside = path.with_suffix(".tmp")
        pq.write_table(table, aside)
        aside.replace(path)

    def show(self, title: str, columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row] | None = None) -> None:
        """Print some of the rows, or all, as a table."""
        table = Table(title=title)
        for number, name in enumerate(columns):
            table.add_column(name, justify="left" if number < 2 else "right")
        for row in self.rows if rows is None else rows:
            table.add_row(*[text(row) for text in columns.values()])
        console().print(table)


def console() -> Console:
    """Return a console that is wide enough for the tables where there is no terminal, as in a log."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=160)


def is_quick(description: str | None) -> bool:
    """Read a command line whose only option is --quick."""
    return bool(command_line(description).parse_args().quick)


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return the command line of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, about a minute: to see that it works")
    return parser


def take_turns(
    sides: Mapping[str, Callable[[], Answer]], repetitions: int, warm_up: int = 1
) -> dict[str, list[tuple[float, Answer]]]:
    """Call the sides in turn and return the seconds of each call with its answer, without those of the warm-up.

    Every second time, the order is reversed, so that no side always runs on the caches that the same other side left.
    """
    results: dict[str, list[tuple[float, Answer]]] = {name: [] for name in sides}
    for repetition in range(warm_up + repetitions):
        for name in list(sides) if repetition % 2 == 0 else reversed(list(sides)):
            begin = time.perf_counter()
            answer = sides[name]()
            if repetition >= warm_up:
                results[name].append((time.perf_counter() - begin, answer))
    return results


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds the work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compared(
    what: str,
    variant: str,
    figure: str,
    seconds: Sequence[float],
    reference: str,
    reference_seconds: Sequence[float],
    note: str | None = None,
) -> Row:
    """Return the row of a side against its reference.

    The ratio is the median of the turns' ratios, so that slow drifts of the machine cancel; low and high are the
    least and the greatest of them.
    """
    ratios = [a / b for a, b in zip(seconds, reference_seconds, strict=True) if b > 0]
    return Row(
        what,
        variant,
        figure,
        median(seconds),
        reference,
        median(reference_seconds),
        median(ratios) if ratios else None,
        min(ratios, default=None),
        max(ratios, default=None),
        repetitions=len(seconds),
        note=note,
    )


def installed(package: str) -> str | None:
    """Return the version of a package in this environment."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pss(pid: int) -> float:
    """Return a process's PSS in MB: its memory, with each page divided by the number of processes that share it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Pss")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes so far; unlike elapsed time, they are comparable on a busy machine."""
    ticks = 0
    for pid in pids:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])  # in user and in system mode
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds(value: float | None) -> str:
    """Return seconds as the tables show them."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.2f} ms"


def spread(row: Row) -> str:
    """Return a ratio with the least and the greatest of its turns."""
    if row.ratio is None:
        return "-"
    if row.ratio_low is None or row.ratio_high is None:
        return f"{row.ratio:.2f}"
    return f"{row.ratio:.2f} ({row.ratio_low:.2f} .. {row.ratio_high:.2f})"
