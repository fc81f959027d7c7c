"""Which method to pick: all methods on settings that no paper has, by accuracy, worst clients, traffic and time."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pages.store import Sweep, collected, unpacked
from pages.tables import pair, setting_lines
from rayfl.analysis.comparison import compare_runs
from rayfl.analysis.measures import Measured, measure
from rayfl.results import Run

SWEEPS = ("comparison/writers", "comparison/shakespeare", "comparison/combined_shift")
#: Methods count as equally good if their accuracy is at most so many points below the highest.
NEAR = 1.0


def choice_lines(results: Path) -> list[str]:
    """Return the section of RESULTS.md."""
    kept = collected(results)
    lines = [
        "## Which method",
        "",
        "Settings that no paper has, all methods with the options of one file: K = 4 where it must be given, no option",
        "is tuned. Accuracy and macro-F1 in percent, means of the last three tests ± standard deviations over seeds;",
        "worst: mean accuracy of the tenth of clients with the lowest; MB: what a client sends and receives in all",
        "rounds; seconds: training and server, one process.",
        "",
    ]
    for name in SWEEPS:
        sweeps = [sweep for sweep in kept if sweep.name == name]
        if not sweeps:
            lines += [f"Not run yet: `{Sweep(name).command}`.", ""]
        for sweep in sweeps:
            with unpacked(sweep, results) as runs:
                frame = choices(runs)
                lines += [f"### {name.partition('/')[2].replace('_', ' ')}", "", *setting_lines(sweep, runs), ""]
            lines += [*_markdown(frame), *best_of(frame), ""]
    return lines


def choices(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each method, the most accurate first."""
    rows = []
    for (_, method), cell in compare_runs(runs, metric="accuracy", at="last3").cells.items():
        found = pd.DataFrame([_figures(measured) for measured in cell.values()])
        means, deviations = found.mean(), found.std()
        spread = {f"{name}_std": deviations[name] for name in ("accuracy", "macro_f1")}
        rows.append({"method": method, "seeds": len(found), **means, **spread})
    return pd.DataFrame(rows).sort_values("accuracy", ascending=False, kind="stable").reset_index(drop=True)


def _figures(measured: Measured) -> dict[str, float]:
    run = measured.run
    rounds, clients = run.rounds, run.clients["client"].nunique()
    f1 = measure(run, "macro_f1", "last3")
    return {
        "accuracy": 100 * measured.value,
        "macro_f1": 100 * f1.value if f1 else float("nan"),
        "worst": 100 * measured.figures.get("worst10", float("nan")),
        "clusters": float(rounds["clusters"].iloc[-1]),
        "megabytes": float(rounds[["bytes_up", "bytes_down"]].sum().sum()) / clients / 1e6,
        "seconds": float(rounds[["seconds_train", "seconds_server"]].sum().sum()),
    }


def best_of(frame: pd.DataFrame) -> list[str]:
    """Say which method is the best by each figure; those of cost among the methods that are as accurate."""
    near = frame[frame["accuracy"] >= frame["accuracy"].max() - NEAR]

    def row(name: str, rows: pd.DataFrame, least: bool = False) -> str:
        found = rows.loc[rows[name].idxmin() if least else rows[name].idxmax()]
        return f"{found['method']} ({found[name]:.1f})"

    return [
        f"Highest accuracy: {row('accuracy', frame)}; macro-F1: {row('macro_f1', frame)}; worst tenth:"
        f" {row('worst', frame)}. Of the {len(near)} methods within {NEAR:g} point of the highest accuracy, least"
        f" traffic: {row('megabytes', near, True)} MB; least time: {row('seconds', near, True)} s."
    ]


def _markdown(frame: pd.DataFrame) -> list[str]:
    lines = [
        "| method | seeds | accuracy | macro-F1 | worst | clusters | MB | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in frame.itertuples():
        cells = [row.method, row.seeds, pair(row.accuracy, row.accuracy_std), pair(row.macro_f1, row.macro_f1_std)]
        cells += [f"{row.worst:.1f}", f"{row.clusters:.1f}", f"{row.megabytes:.1f}", f"{row.seconds:.0f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]
