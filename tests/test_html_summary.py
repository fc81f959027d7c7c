"""What a notebook shows of a run."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

from run_folders import begin_run, write_run

import rayfl
from rayfl.results import RunWriter, Storage
from rayfl.results.stopped import StoppedEarly, write_stopped


def parsed(html: str) -> ET.Element:
    """Read it strictly: every tag is closed, everything is escaped."""
    return ET.fromstring(html)


def facts(root: ET.Element) -> dict[str, str]:
    return {row[0].text or "": row[1].text or "" for row in root.iter("tr")}


def test_a_summary_has_what_the_run_is_and_its_last_figures(tmp_path: Path) -> None:
    run = rayfl.load(write_run(tmp_path / "mine", "seed=7", "method.addons=[cam]"))
    found = facts(parsed(run._repr_html_()))
    assert found["run"] == str(tmp_path / "mine")
    assert (found["method"], found["seed"], found["rounds"]) == ("fesem+cam", "7", "4 of 4")
    assert (found["accuracy"], found["clusters"], found["ARI"]) == ("0.4000", "2", "0.500")
    assert found["seconds per round"] == "0.25"


def test_the_curve_has_the_values_of_the_table_from_left_to_right_and_bottom_to_top(tmp_path: Path) -> None:
    run = rayfl.load(write_run(tmp_path / "mine"))
    (line,) = parsed(run._repr_html_()).iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 4
    xs, ys = zip(*points, strict=True)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)
    steps = [b - a for a, b in pairwise(ys)]  # the values are 0.1, 0.2, 0.3, 0.4
    assert max(steps) - min(steps) < 0.2
    assert "accuracy from 0.1000 to 0.4000, rounds 1 to 4" in run._repr_html_()


def test_nothing_is_fetched_or_executed_and_what_the_folder_says_is_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<script>alert(1)<&'\">")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("name: fesem", "name: 'own:<img src=x onerror=y>'"))
    html = rayfl.load(folder)._repr_html_()
    assert facts(parsed(html))["method"] == "own:<img src=x onerror=y>"
    assert "<script" not in html and "<img" not in html
    assert not re.search(r"https?:|src=[\"']|href|url\(|@import", html.replace("src=x", ""))


def test_runs_without_rounds_with_one_and_with_thousands_are_small(tmp_path: Path) -> None:
    begin_run(tmp_path / "begun")
    (begun,) = rayfl.load_all(tmp_path / "begun")
    html = begun._repr_html_()
    assert facts(parsed(html))["rounds"] == "0 of 4" and "<svg" not in html
    assert "<svg" not in rayfl.load(write_run(tmp_path / "one", rounds=1))._repr_html_()
    storage = begin_run(tmp_path / "long", "rounds=5000")
    with RunWriter(storage, "long", "fesem", 0, flush_seconds=60) as writer:
        for number in range(1, 1001):
            writer.write_round(number, {"accuracy": number / 1000, "accuracy_mean": 0.5}, {"client": [0]})
    html = rayfl.load(tmp_path / "long")._repr_html_()
    (line,) = parsed(html).iter("polyline")
    last = line.attrib["points"].split()[-1]
    assert len(html) < 10_000 and last == "354.0,6.0"  # the newest value is the highest, at the right edge


def test_an_early_stop_is_told_with_its_reason(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", rounds=2)
    write_stopped(Storage(folder), StoppedEarly(2, 4, "no <better> value"))
    assert facts(parsed(rayfl.load(folder)._repr_html_()))["rounds"] == "2 of 4, stopped early: no <better> value"
