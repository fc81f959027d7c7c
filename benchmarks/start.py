"""The time from `rayfl run` to the first round of the digits, against the minimum with Ray: its start, and torch.

    python benchmarks/start.py [--quick]

The other side is a script that starts Ray with two actors, which import torch and answer. Each side is a process of its
own, and the two take turns. Seconds are counted from the start of the process until it prints the line of the first
round.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from measuring import Report, Row, compared, is_quick, seconds, spread, take_turns

#: What `rayfl run` has done, and words of the line that it then prints.
MARKS = {
    "imports": "starting Ray and the client actors",
    "Ray and the actors": "client actor",
    "the first round": "round 1/",
}
FIRST_ROUND = "the first round"
RAYFL, BARE = "rayfl run", "Ray and torch alone"
BARE_SCRIPT = """
import logging, ray
ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
@ray.remote
class Actor:
    def threads(self):
        import torch
        return torch.get_num_threads()
actors = [Actor.remote() for _ in range(2)]
ray.get([actor.threads.remote() for actor in actors])
print("round 1/", flush=True)
"""


@dataclass
class Start:
    """When each mark appeared, in seconds from the start of the process."""

    marks: dict[str, float] = field(default_factory=dict)


def main() -> None:
    quick = is_quick(__doc__)
    report = Report("start", quick)
    with tempfile.TemporaryDirectory() as folder:
        rayfl = [sys.executable, "-m", "rayfl.cli", "run", "rounds=2", f"output.dir={folder}"]
        sides = {RAYFL: partial(watch, rayfl), BARE: partial(watch, [sys.executable, "-c", BARE_SCRIPT])}
        turns = take_turns(sides, 2 if quick else 7)
    firsts = {side: [start.marks[FIRST_ROUND] for _, start in turns[side]] for side in sides}
    report.add(compared("digits", RAYFL, FIRST_ROUND, firsts[RAYFL], BARE, firsts[BARE]))
    for mark in MARKS:
        came = [start.marks[mark] for _, start in turns[RAYFL]]
        worst = f"{min(came):.1f} .. {max(came):.1f} s"
        report.add(Row("digits", RAYFL, f"until {mark}", median(came), repetitions=len(came), note=worst))
    report.show(
        "seconds from the command to what it has done by then",
        {
            "what": lambda row: row.variant,
            "until": lambda row: row.figure.removeprefix("until "),
            "median": lambda row: seconds(row.seconds),
            "x Ray and torch alone": spread,
            "all": lambda row: row.note or "",
        },
    )


def watch(command: list[str]) -> Start:
    """Run a command to its end, and record when it printed each mark."""
    begin, start = time.perf_counter(), Start()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout
    printed = []
    for line in process.stdout:
        printed.append(line)
        for mark, words in MARKS.items():
            if words in line and mark not in start.marks:
                start.marks[mark] = time.perf_counter() - begin
                break
    if process.wait() or FIRST_ROUND not in start.marks:
        raise RuntimeError("".join(printed[-20:]))
    return start


if __name__ == "__main__":
    main()
