"""The papers' tables and figures from kept results: collect them from finished sweeps, write the pages, check them.

    python experiments/results.py collect experiments/cam/table_1.yaml --set small [--runs FOLDER]
    python experiments/results.py write      # RESULTS.md, WHAT_HOLDS.md and figures/
    python experiments/results.py check      # exit code 1 if a page is not what the Parquet files give

Numbers come from `experiments/results/`, sentences from `pages/sentences.yaml`, claims from `pages/claims.yaml`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from pages.choice import choice_lines  # noqa: E402
from pages.claims import check_claims, claims_page  # noqa: E402
from pages.figures import draw_all, drawn, name_of  # noqa: E402
from pages.store import Sweep, check_names, collect, collected  # noqa: E402
from pages.tables import known_files, results_page, tables  # noqa: E402

from rayfl.errors import InputError  # noqa: E402
from rayfl.input_tree import load_yaml  # noqa: E402

RESULTS = HERE / "results"


def pages(results: Path = RESULTS) -> dict[str, str]:
    """Return the text of each page, by its file's name: the same for the same Parquet files and sentences."""
    sentences, claims = _read("sentences.yaml"), _read("claims.yaml")
    known = [*tables(), *known_files()]
    check_names([" ".join(str(name).split()[:2]) for name in sentences], known, "sentences.yaml")
    check_claims(claims, known_files())
    figures = [name_of(figure, sweep) for figure, sweep in drawn(collected(results))]
    return {
        "RESULTS.md": results_page(results, sentences, figures, choice_lines(results)),
        "WHAT_HOLDS.md": claims_page(results, claims),
    }


def write(results: Path = RESULTS, target: Path = HERE) -> list[Path]:
    """Write the pages and the figures."""
    texts = pages(results)
    draw_all(results, target / "figures")
    for name, text in texts.items():
        (target / name).write_text(text)
    return [target / name for name in texts]


def differing(results: Path = RESULTS, target: Path = HERE) -> list[str]:
    """Return a line for each page that is not what the Parquet files give, and for each figure that is missing."""
    faults = []
    for name, text in pages(results).items():
        written = (target / name).read_text().splitlines() if (target / name).exists() else []
        lines = text.splitlines()
        if written != lines:
            both = zip(written, lines, strict=False)
            number = next((n for n, (a, b) in enumerate(both, 1) if a != b), min(len(written), len(lines)) + 1)
            faults.append(f"{name} is not what the Parquet files give, from line {number} on")
    for figure, sweep in drawn(collected(results)):
        if not (target / "figures" / f"{name_of(figure, sweep)}.png").exists():
            faults.append(f"figures/{name_of(figure, sweep)}.png is missing")
    return faults


def main() -> None:
    """Carry out a command; exit with 2 for bad input, 1 if a check fails."""
    parser = argparse.ArgumentParser(description="The papers' tables and figures from kept results.")
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("collect", help="keep what the pages need of finished runs")
    keep.add_argument("file", help="the sweep file")
    keep.add_argument("--runs", metavar="FOLDER", help="where the runs are; default: where the file says")
    keep.add_argument("--set", default="", help="the set that was run")
    commands.add_parser("write", help="write the pages and the figures")
    commands.add_parser("check", help="compare the pages with the Parquet files")
    options = parser.parse_args()
    try:
        if options.command == "collect":
            print(collect(Sweep.of(options.file, options.set), RESULTS, options.runs))
        elif options.command == "write":
            print(*write(), sep="\n")
        elif faults := differing():
            print(*[f"error: {fault}: run python experiments/results.py write" for fault in faults], sep="\n")
            sys.exit(1)
    except InputError as error:
        print(*[f"error: {line}" for line in error.lines], sep="\n", file=sys.stderr)
        sys.exit(2)


def _read(name: str) -> Any:
    return load_yaml((HERE / "pages" / name).read_text(), f"pages/{name}") or {}


if __name__ == "__main__":
    main()
