"""`rayfl compare`: from folders to tables, printed or written to a file. The numbers come from `rayfl.analysis`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rayfl.errors import InputError
from rayfl.results import Run, load_all

if TYPE_CHECKING:
    from rayfl.analysis.comparison_tables import Format


def gather(given: str | Path | Run | Sequence[str | Path | Run]) -> list[Run]:
    """Return the given runs and the runs in and below the given folders, each once."""
    several = [given] if isinstance(given, str | Path | Run) else list(given)
    found: dict[str, Run] = {}
    for each in several:
        below = [each] if isinstance(each, Run) else load_all(each)
        if not below:
            raise InputError(f"{each} holds no run: give run folders, or folders that hold runs")
        for run in below:
            found.setdefault(run.path, run)
    return list(found.values())


def compare_folders(
    folders: Sequence[str], form: str | None, paper: str | None, output: Path | None, **options: Any
) -> None:
    """Compare the runs in and below these folders and print the tables, or write them to a file."""
    from rayfl.analysis.comparison import compare_runs
    from rayfl.analysis.comparison_tables import all_notes, render, show
    from rayfl.analysis.papers import beside_paper, printed

    chosen = _format(form, output)
    if output is not None and not output.parent.is_dir():
        raise InputError(f"-o {output}: there is no folder {output.parent}; make it first")
    if paper is not None:
        printed(paper)  # report a wrong name before any run is read
    comparison = compare_runs(gather(folders), **options)
    beside = None if paper is None else beside_paper(comparison, paper)
    if chosen == "text" and output is None and sys.stdout.isatty():
        show(comparison, beside, Console(highlight=False))
        return
    text = render(comparison, chosen, beside)
    if output is None:
        print(text, end="")
    else:
        try:
            output.write_text(text)
        except OSError as error:
            raise InputError(f"-o {output} cannot be written: {error.strerror or error}; name another file") from None
        print(output)
    if chosen in ("csv", "latex"):  # these formats have no place for notes
        for note in all_notes(comparison, beside):
            print(f"note: {note}", file=sys.stderr)


def _format(asked: str | None, output: Path | None) -> "Format":
    from rayfl.analysis.comparison_tables import ENDINGS, check_format

    if asked is not None:
        check_format(asked)
        return asked  # type: ignore[return-value]
    if output is None:
        return "text"
    if output.suffix.lower() not in ENDINGS:
        raise InputError(f"-o {output}: files end in one of {', '.join(ENDINGS)}; or name a format with --format")
    return ENDINGS[output.suffix.lower()]
