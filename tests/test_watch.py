"""`rayfl watch`: a live view of runs, from disk alone."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from faults import wait_until
from rich.console import Console
from run_folders import add_rounds, begin_run, files_below, gated_run, open_gate, typed, write_run

import rayfl
from rayfl.errors import InputError
from rayfl.following import views
from rayfl.following.looking import Ending, Looker
from rayfl.following.watching import watch
from rayfl.results import Storage
from rayfl.results.locks import is_locked
from rayfl.results.status import read_status


def test_a_real_run_is_shown_from_round_to_round_until_it_is_done(tmp_path: Path) -> None:
    with gated_run(tmp_path) as going:
        watching = typed(tmp_path, "watch", "runs/mine", "--interval", "0.1")
        assert watching.stdout is not None and watching.stderr is not None
        lines = []
        for line in watching.stdout:
            lines.append(line.rstrip())
            if line.startswith("mine  running  round 3/9"):
                open_gate(tmp_path, 4)
            if line.startswith("mine  running  round 7/9"):
                open_gate(tmp_path, 8)
        assert (watching.wait(20), watching.stderr.read()) == (0, "")
        assert going.wait(30) == 0  # watching has not disturbed it
    numbers = [int(re.search(r"round (\d+)/9", line)[1]) for line in lines]  # type: ignore[index]
    assert numbers == sorted(numbers) and {3, 7, 9} <= set(numbers)
    last = rayfl.load(tmp_path / "runs" / "mine").rounds.iloc[-1]
    pace = r"\d+\.\d\d s/round"
    figures = f"accuracy {last['accuracy']:.4f}  K 2  ARI {last['ari']:.2f}"
    assert re.fullmatch(rf"mine  done  round 9/9  {figures}  {pace}", lines[-1])
    (seventh,) = [line for line in lines if " round 7/9 " in line]
    assert re.fullmatch(rf"mine  running  round 7/9  accuracy .*  {pace}  \d+ s left", seventh)


def test_a_killed_run_ends_the_watch_with_how_to_resume_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "my first", rounds=2)
    holding = "import sys, time; from rayfl.results import Storage\nwith Storage(sys.argv[1]).locked(): time.sleep(99)"
    running = subprocess.Popen([sys.executable, "-c", holding, str(folder)])
    wait_until(lambda: is_locked(Storage(folder)) is True, "the lock", 30)
    watching = typed(tmp_path, "watch", "runs", "--interval", "0.1", "--patience", "0.5")
    assert watching.stdout is not None
    assert " running " in watching.stdout.readline()
    running.kill()
    running.wait()
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (1, "")
    assert out.splitlines()[-1] == f"{folder} is unfinished, and no process runs it; resume it: rayfl resume '{folder}'"
    assert " unfinished " in out.splitlines()[-2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_at_once_and_puts_the_terminal_right(number: signal.Signals, tmp_path: Path) -> None:
    storage = begin_run(tmp_path / "run")
    add_rounds(storage, 1, 2)
    before = files_below(tmp_path)
    ours, theirs = pty.openpty()
    with storage.locked():
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "20"}
        command = [sys.executable, "-m", "rayfl.cli", "watch", str(tmp_path / "run"), "--interval", "0.1"]
        watching = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        shown = read_until(ours, "sizes 3 3")
        watching.send_signal(number)
        shown += read_until(ours, None)
        assert watching.wait(20) == 128 + number
    os.close(ours)
    assert "round 2/4" in shown and "running" in shown and "0.2000" in shown and "█" in shown
    assert "clusters 2, sizes 3 3   ARI 0.500" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
    assert "Traceback" not in shown
    assert files_below(tmp_path) == before


def read_until(terminal: int, text: str | None) -> str:
    """Read what a process writes to its terminal, until a text comes or the process has ended."""
    shown = b""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # no process has it open any more
            break
        if text is not None and text.encode() in shown:
            break
    return shown.decode()


def watched(path: Path, **options: float) -> tuple[int, list[str]]:
    text = io.StringIO()
    code = watch(path, interval=0.02, console=Console(file=text, width=200), **options)
    return code, text.getvalue().splitlines()


def test_a_folder_of_complete_runs_is_shown_once_and_the_watch_is_over(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "seed=1")
    begin = time.monotonic()
    code, lines = watched(tmp_path, patience=60)
    assert time.monotonic() - begin < 10
    assert code == 0
    assert [line.split()[:4] for line in lines] == [["a", "done", "round", "4/4"], ["b", "done", "round", "4/4"]]


def test_runs_of_a_folder_are_followed_also_those_that_start_later(tmp_path: Path) -> None:
    first = begin_run(tmp_path / "first")

    def carry_out() -> None:
        with first.locked():
            add_rounds(first, 1, 3)
            time.sleep(1.5)
            add_rounds(first, 4, 4)
        time.sleep(0.2)
        second = begin_run(tmp_path / "second")
        with second.locked():
            time.sleep(0.2)
            add_rounds(second, 1, 4)

    thread = threading.Thread(target=carry_out)
    with first.locked():
        pass
    thread.start()
    wait_until(lambda: is_locked(first) is True, "the first run", 10)
    code, lines = watched(tmp_path, patience=3)
    thread.join()
    assert code == 0
    seen = [tuple(re.split(r"\s{2,}", line)[:3]) for line in lines]
    assert ("first", "running", "round 3/4") in seen
    assert seen.index(("first", "done", "round 4/4")) < seen.index(("second", "done", "round 4/4"))
    assert len(seen) == len(set(seen))  # a line only when something has changed


def test_a_damaged_run_is_shown_with_the_reason_and_counts_as_not_complete(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "torn") / "rounds" / "part-00000.parquet").write_bytes(b"PAR1 torn")
    code, lines = watched(tmp_path, patience=0)
    assert code == 1
    assert any(line.startswith("torn  damaged: ") for line in lines)
    assert any(line.startswith("good  done") for line in lines)


def test_without_runs_there_is_nothing_to_watch(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs: give a run folder"):
        watch(tmp_path)
    write_run(tmp_path / "run")
    with pytest.raises(InputError, match="--interval 0"):
        watch(tmp_path, interval=0.0)


def test_complete_runs_are_not_read_again_until_somebody_writes_to_them(tmp_path: Path) -> None:
    done = begin_run(tmp_path / "done")
    add_rounds(done, 1, 4)
    looker = Looker(tmp_path)
    (first,) = looker.look()
    assert looker.look() == [first] and looker.look()[0] is first
    with done.locked():
        (again,) = looker.look()
    assert again is not first and again.state == "done"


def test_an_ending_waits_for_a_run_that_is_left_and_in_object_stores_for_ever(tmp_path: Path) -> None:
    now = [0.0]
    ending = Ending(patience=10, clock=lambda: now[0])
    (left,) = map(read_status, rayfl.load_all(write_run(tmp_path / "left", rounds=2)))
    assert not ending.is_here([left], one=True)
    now[0] = 9.9
    assert not ending.is_here([left], one=True)
    now[0] = 10.0
    assert ending.is_here([left], one=True)
    (remote,) = map(read_status, rayfl.load_all(f"local://{tmp_path}/left"))
    now[0] = 1e6
    assert (left.writing, remote.writing) == (False, None)
    assert not Ending(patience=10, clock=lambda: now[0]).is_here([remote], one=True)
    now[0] = 2e6
    assert not ending.is_here([remote], one=True)


def test_a_chart_rises_with_its_values_and_keeps_the_newest() -> None:
    assert views.chart([0.0, 0.5, 1.0], width=10, height=2) == [" ▁█", "▁██"]
    long = [0.0] * 999 + [1.0]
    (line,) = views.chart(long, width=50, height=1)
    assert len(line) == 50 and line[-1] == "█" and set(line[:-1]) == {"▁"}
    assert len(set(views.chart([0.3, 0.3], width=5, height=1)[0])) == 1


def test_a_table_of_many_runs_fits_the_window_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    for number in range(12):
        write_run(tmp_path / f"run{number:02d}", f"seed={number}", begun=1000.0 + number)
    half = begin_run(tmp_path / "half", begun=1.0)
    add_rounds(half, 1, 2)
    with half.locked():
        statuses = Looker(tmp_path).look()
    text = io.StringIO()
    console = Console(file=text, width=120, height=10)
    console.print(views.many_runs(tmp_path, statuses, 120, 10))
    lines = text.getvalue().splitlines()
    assert len(lines) <= 10
    assert lines[1].startswith("half") and "0 s left" in lines[1]  # running runs come first
    assert "... and 8 more" in lines[-2]
    assert lines[-1].strip() == "13 runs: 1 running, 12 done"
