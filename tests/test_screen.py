"""What a person sees of a run's progress, on terminals of several widths."""

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord


def record(number: int, sizes: list[int], metric: str = "accuracy", seconds: float = 0.45) -> RoundRecord:
    summary = {metric: 0.912, f"{metric}_mean": 0.9, "ari": 0.95, "seconds_total": seconds, "clusters": len(sizes)}
    return RoundRecord(number, summary, {}, {"cluster": np.arange(len(sizes)), "size": np.array(sizes)}, {})


def last_line(width: int, rounds: int, *records: RoundRecord) -> str:
    """The progress line as a terminal of this width shows it in the end."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False, color_system=None)
    screen = Screen(console=console)
    with screen.rounds(rounds):
        for each in records:
            screen.show_round(each)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.startswith("round")][-1].rstrip()


SIZES = [24, 20, 16, 14, 12, 10, 4]


@pytest.mark.parametrize("rounds", [60, 1000])
def test_seven_clusters_fit_into_80_columns_with_both_ends(rounds: int) -> None:
    line = last_line(80, rounds, record(rounds - 1, SIZES))
    assert len(line) <= 80 and "…" not in line
    assert re.match(rf"round +{rounds - 1}/{rounds} ", line)
    assert re.search(r"accuracy 0\.912 K 7 \(24,20,.*\) ARI 0\.95 0\.45 s left [\d:-]+$", line), line


def test_a_wide_terminal_shows_all_sizes() -> None:
    assert "K 7 (24,20,16,14,12,10,4)  ARI 0.95  0.45 s/round left" in last_line(140, 60, record(3, SIZES))


@pytest.mark.parametrize("width", [60, 70, 80, 90, 100, 110, 119, 120, 160])
@pytest.mark.parametrize("clusters", [1, 7, 30])
def test_the_time_left_is_on_every_line(width: int, clusters: int) -> None:
    line = last_line(width, 600, *[record(number, [9] * clusters, seconds=12.3) for number in (1, 2)])
    assert len(line) <= width and re.search(r" left [\d:-]+$", line), line
    assert f"K {clusters}" in line and "accuracy 0.912" in line


def test_a_log_has_the_long_form() -> None:
    out = io.StringIO()
    screen: Any = Screen(console=Console(file=out, width=80, highlight=False))
    with screen.rounds(60):
        screen.show_round(record(1, SIZES))
    assert "K 7 (24,20,16,14,12,10,4)  ARI 0.95  0.45 s/round" in out.getvalue()


def test_before_the_first_test_there_is_no_metric_to_show() -> None:
    out = io.StringIO()
    screen: Any = Screen(console=Console(file=out, width=80, highlight=False))
    with screen.rounds(60):
        screen.show_round(RoundRecord(1, {"seconds_total": 0.45}, {}, None, {}))
    assert "not tested yet" in out.getvalue() and "nan" not in out.getvalue()
