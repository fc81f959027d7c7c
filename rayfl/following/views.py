"""How runs are shown in a terminal: one run with its curve and clusters, many runs as a table, or plain lines."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rayfl.errors import RayflError, one_line
from rayfl.following.listing import name_below
from rayfl.following.run_table import STYLES, figure, run_table
from rayfl.results.status import Status

_BLOCKS = " ▁▂▃▄▅▆▇█"
_CHART_HEIGHT = 5
_MOST_SIZES = 12
#: In a view of many runs, running ones come first, because a terminal may have no room for all.
_ORDER = ("running", "failed", "damaged", "unfinished", "stopped early", "done")


def chart(values: Sequence[float], width: int, height: int = _CHART_HEIGHT) -> list[str]:
    """Return a curve as lines of block characters, the top one first, at most `width` wide.

    >>> chart([0, 1, 2, 3, 4, 5, 6, 7], width=8, height=1)
    ['▁▂▃▄▅▆▇█']
    """
    if len(values) > width:  # take the last value of each stretch, so that the newest one is always shown
        values = [values[(at + 1) * len(values) // width - 1] for at in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    steps = 8 * height - 1
    levels = [1 + round((v - low) / (high - low) * steps) if high > low else 4 * height for v in values]
    return ["".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels) for row in reversed(range(height))]


def duration(seconds: float | None) -> str:
    """Return a time span as text.

    >>> duration(4.2), duration(95), duration(7500), duration(None)
    ('4 s', '1:35 min', '2:05 h', '-')
    """
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02d} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def cluster_sizes(status: Status) -> list[int]:
    """Return the sizes of the clusters in the last round that has clusters, the largest first."""
    try:
        clusters = status.run.clusters
    except (pa.ArrowException, OSError, ValueError, RayflError):  # the rest of the view can still be shown
        return []
    if clusters.empty:
        return []
    last = clusters[clusters["round"] == clusters["round"].max()]
    return sorted(last["size"].dropna().astype(int).tolist(), reverse=True)


def plain_line(path: str | Path, status: Status) -> str:
    """Return a run's progress in one line, for a log."""
    name = name_below(path, status)
    if status.state == "damaged":
        return f"{name}  damaged: {status.problem}"
    line = f"{name}  {status.state}  round {status.round}/{status.rounds}"
    if status.metric is not None:
        line += f"  {one_line(status.metric)} {figure(status.value, '.4f')}"
    if status.clusters is not None:
        line += f"  K {status.clusters}"
    if status.ari is not None:
        line += f"  ARI {status.ari:.2f}"
    if status.seconds_per_round is not None:
        line += f"  {status.seconds_per_round:.2f} s/round"
    if status.problem is not None:
        line += f"  {status.problem}"
    return line if status.seconds_left is None else f"{line}  {duration(status.seconds_left)} left"


def one_run(path: str | Path, status: Status, width: int) -> RenderableType:
    """Return the view of one run."""
    title = Text(name_below(path, status), "bold")
    if status.state == "damaged":
        return Group(title, Text(f"damaged: {status.problem}", STYLES["damaged"]))
    what = f"{status.method} on {status.data}, seed {status.seed}"
    parts: list[RenderableType] = [title, Text(one_line(what)), _progress(status)]
    parts += _curve(status, width)
    sizes = cluster_sizes(status)
    if sizes:
        shown = " ".join(map(str, sizes[:_MOST_SIZES])) + (" ..." if len(sizes) > _MOST_SIZES else "")
        ari = "" if status.ari is None else f"   ARI {status.ari:.3f}"
        parts.append(Text(f"clusters {len(sizes)}, sizes {shown}{ari}"))
    if status.problem is not None:
        parts.append(Text(status.problem, STYLES[status.state]))
    return Group(*parts)


def _progress(status: Status) -> Table:
    line = Table.grid(padding=(0, 2))
    pace = "" if status.seconds_per_round is None else f"{status.seconds_per_round:.2f} s/round"
    left = "" if status.seconds_left is None else f"{duration(status.seconds_left)} left"
    line.add_row(
        Text(f"round {status.round}/{status.rounds}"),
        ProgressBar(total=status.rounds or 1, completed=status.round, width=30),
        Text(status.state, STYLES[status.state]),
        Text(pace),
        Text(left),
    )
    return line


def _curve(status: Status, width: int) -> list[RenderableType]:
    if status.metric is None:
        return []
    values = status.run.rounds[status.metric].dropna().tolist()
    labels = [f"{max(values):.4f}", *[""] * (_CHART_HEIGHT - 2), f"{min(values):.4f}"]
    room = max(10, min(width, 100) - max(map(len, labels)) - 2)
    lines = zip(labels, chart(values, room), strict=True)
    return [
        Text(one_line(f"{status.metric} {figure(status.value, '.4f')}")),
        *[Text(f"{label:>7} {line}", "cyan", no_wrap=True) for label, line in lines],
    ]


def many_runs(path: str | Path, statuses: Sequence[Status], width: int, height: int) -> RenderableType:
    """Return a table with a line per run, running ones first, and a line that counts them by state."""
    ranked = sorted(statuses, key=lambda status: (_ORDER.index(status.state), -(status.begun or 0.0)))
    room = max(1, height - 4)
    shown = ranked if len(ranked) <= room else ranked[: room - 1]
    notes = [status.problem or _time_left(status) for status in shown]
    names = [name_below(path, status) for status in shown]
    parts: list[RenderableType] = [run_table(names, shown, notes, "pace", width)]
    if len(shown) < len(ranked):
        parts.append(Text(f"... and {len(ranked) - len(shown)} more"))
    return Group(*parts, Text(summary(statuses), "bold"))


def _time_left(status: Status) -> str:
    if status.seconds_per_round is None or status.seconds_left is None:
        return ""
    return f"{status.seconds_per_round:.2f} s/round, {duration(status.seconds_left)} left"


def summary(statuses: Sequence[Status]) -> str:
    """Return how many runs there are in each state."""
    counts = {state: sum(status.state == state for status in statuses) for state in _ORDER}
    total = f"{len(statuses)} run{'' if len(statuses) == 1 else 's'}"
    return f"{total}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)
