"""`rayfl list`: one line per run with its progress and its settings."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rayfl.errors import InputError, closest, one_line, shown
from rayfl.following.run_table import run_table
from rayfl.following.settings import differing, flat_settings
from rayfl.results import Storage, load_all
from rayfl.results.status import Status, read_status, time_text
from rayfl.uris import without_secrets

FORMATS = ("text", "csv", "json")
#: Settings that have their own columns.
_SHOWN = ("method.name", "method.addons", "data.source", "seed", "rounds")
_WIDEST = 100_000
_COLUMNS = [
    *("run", "path", "state", "problem", "method", "data", "seed", "round", "rounds"),
    *("metric", "value", "clusters", "ari", "seconds_per_round", "begun"),
]


def list_runs(path: str | Path, form: str = "text", console: Console | None = None) -> None:
    """Print the runs below a folder, or at a URI, in the order in which they started."""
    if form not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise InputError(f"--format {shown(form)} is not allowed{closest(form, [*FORMATS])}; allowed: {allowed}")
    statuses = statuses_below(path)
    settings = settings_that_differ(statuses)
    if form == "json":
        print(json.dumps(_records(path, statuses, settings), indent=1, allow_nan=False))
    elif form == "csv":
        print(_as_csv(_records(path, statuses, settings)), end="")
    elif not statuses:
        print(f"no runs in {without_secrets(str(path))}")
    else:
        _print_table(path, statuses, settings, console or Console(highlight=False))


def statuses_below(path: str | Path) -> list[Status]:
    """Return the statuses of all runs below a folder, in the order in which they started."""
    return sorted(map(read_status, load_all(path)), key=lambda status: (status.begun or 0.0, status.run.path))


def settings_that_differ(statuses: Sequence[Status]) -> list[dict[str, Any]]:
    """Return, for each run, the settings that differ between the runs; nothing for a damaged run."""
    whole = [flat_settings(status.run.config) for status in statuses if status.state != "damaged"]
    keys = differing(whole, _SHOWN)
    picked = iter([{key: each[key] for key in keys if key in each} for each in whole])
    return [{} if status.state == "damaged" else next(picked) for status in statuses]


def name_below(path: str | Path, status: Status) -> str:
    """Return the run's path relative to the given folder; for a single run, the folder's name."""
    base, full = Storage(path).path.partition("?")[0].rstrip("/"), status.run.path.partition("?")[0].rstrip("/")
    return one_line(full.removeprefix(f"{base}/") if full.startswith(f"{base}/") else full.rpartition("/")[2])


def setting_text(value: Any) -> str:
    """Return a setting as a user would type it.

    >>> setting_text([50, 350]), setting_text(True), setting_text("sgd")
    ('[50, 350]', 'true', 'sgd')
    """
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str))


def _print_table(
    path: str | Path, statuses: Sequence[Status], settings: Sequence[dict[str, Any]], console: Console
) -> None:
    notes = [
        status.problem or " ".join(f"{key}={setting_text(value)}" for key, value in own.items())
        for status, own in zip(statuses, settings, strict=True)
    ]
    title = "differs in" if any(settings) else "problem"
    names = [name_below(path, status) for status in statuses]
    table = run_table(names, statuses, notes, title, console.width if console.is_terminal else None)
    # Print at full width: in a file, or in a very narrow window, no column is cut.
    console.width = _WIDEST
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=console.file)


def _records(path: str | Path, statuses: Sequence[Status], settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    records = []
    for status, own in zip(statuses, settings, strict=True):
        known: dict[str, Any] = {name: getattr(status, name, None) for name in _COLUMNS}
        known |= {"run": name_below(path, status), "path": status.run.path, "settings": own}
        known["begun"] = None if status.begun is None else time_text(status.begun)
        infinite = {name for name, value in known.items() if isinstance(value, float) and not math.isfinite(value)}
        records.append(known | dict.fromkeys(infinite))
    return records


def _as_csv(records: list[dict[str, Any]]) -> str:
    """Return the records as CSV, with a column for each setting that differs."""
    keys = list(dict.fromkeys(key for record in records for key in record["settings"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *keys])
    for record in records:
        own = {key: setting_text(value) for key, value in record["settings"].items()}
        writer.writerow([*[record[name] for name in _COLUMNS], *[own.get(key) for key in keys]])
    return text.getvalue()
