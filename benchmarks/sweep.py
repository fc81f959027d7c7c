"""A sweep against the same runs one after the other, each with its own start; and a sweep that is killed half-way.

    python benchmarks/sweep.py [--quick]

Six methods and five seeds on the digits. One by one, each method is timed with seed 0, and the sum is multiplied by
five, the number of seeds. Then the same sweep is killed with SIGKILL half-way and started again: its tables must equal
those of the undisturbed sweep.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from measuring import Report, Row, is_quick, seconds

import rayfl

METHODS = ["fedavg", "ifca", "fesem", "fedac", "fedper", "local"]


def main() -> None:
    quick = is_quick(__doc__)
    methods, seeds, rounds = (METHODS[:2], 1, 2) if quick else (METHODS, 5, 20)
    report = Report("sweep", quick)
    words = [f"rounds={rounds}", "evaluate.every=5", *(["federation=serial"] if quick else [])]
    grid = [f"method.name={','.join(methods)}", f"seed=0..{seeds - 1}", *words]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = sum(timed("run", folder, f"method.name={method}", "seed=0", *words) for method in methods) * seeds
        whole = timed("sweep", folder, *grid, "name=whole")
        count = len(methods) * seeds
        report.add(
            Row(
                "digits",
                f"{len(methods)} methods x {seeds} seeds, {rounds} rounds",
                "one by one / sweep",
                seconds=whole,
                reference="one by one",
                reference_seconds=alone,
                ratio=alone / whole,
                extrapolated=True,
                note=killed_in_the_middle(folder, grid, whole, count),
            )
        )
    report.show(
        "seconds of a sweep, and of its runs one by one with a start each",
        {
            "what": lambda row: row.variant,
            "sweep": lambda row: seconds(row.seconds),
            "one by one": lambda row: seconds(row.reference_seconds),
            "ratio": lambda row: f"{row.ratio:.2f}",
            "note": lambda row: row.note or "",
        },
    )


def command(name: str, folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "rayfl.cli", name, f"output.dir={folder / name}", *words]


def timed(name: str, folder: Path, *words: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command(name, folder, *words), check=True, capture_output=True)
    return time.perf_counter() - begin


def killed_in_the_middle(folder: Path, grid: list[str], whole: float, count: int) -> str:
    words = command("sweep", folder, *grid, "name=killed")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(timeout=whole / 2)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    done = sum(run.finished for run in rayfl.load_all(folder / "sweep" / "killed"))
    subprocess.run(words, check=True, capture_output=True)
    for run in rayfl.load_all(folder / "sweep" / "whole"):
        other = rayfl.load(folder / "sweep" / "killed" / str(run.config.name))
        for one, two in ((run.rounds, other.rounds), (run.clients, other.clients), (run.clusters, other.clusters)):
            timing = [column for column in one if column.startswith("seconds")]
            pd.testing.assert_frame_equal(one.drop(columns=timing), two.drop(columns=timing), check_exact=True)
    return f"killed after {done} of {count} runs, started again: equal tables"


if __name__ == "__main__":
    main()
