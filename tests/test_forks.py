"""Forked processes are as good as fresh ones, where tests rely on it."""

import signal
import subprocess

from faults import alive, wait_until
from forks import Forked, finished, python

DRAW = "import ray; print(*[ray.ObjectRef.from_random().hex() for _ in range(20)])"
STARTING = """
import subprocess, sys
inner = "import sys; print(sys.argv); sys.exit(3)"
sys.exit(subprocess.run([sys.argv[1], "-c", inner, "a"]).returncode)
"""
LOOPING = """
import os, signal, sys, time

def told(*_):
    print("told")
    sys.exit(7)

signal.signal(signal.SIGTERM, told)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_no_two_forks_draw_the_same_ids() -> None:
    drawn = [finished(["-c", DRAW], 120).stdout.split() for _ in range(3)]
    assert [len(ids) for ids in drawn] == [20] * 3
    assert len({id_ for ids in drawn for id_ in ids}) == 60


def test_a_fork_has_the_words_the_exit_code_and_the_signals_of_a_process() -> None:
    done = finished(["-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "a", "b"], 120)
    assert (done.stdout, done.returncode) == ("['a', 'b']\n", 3)
    endless = Forked(["-c", "import time; time.sleep(600)"])
    endless.kill()
    assert endless.wait(60) == -9


def test_a_program_starts_forks_that_get_its_signals_and_end_with_it() -> None:
    done = finished(["-c", STARTING, python()], 120)
    assert (done.stdout, done.returncode) == ("['-c', 'a']\n", 3)
    for number, expected in ((signal.SIGTERM, "told"), (signal.SIGKILL, "")):
        process = subprocess.Popen([python(), "-c", LOOPING], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.stdout.read().strip() == expected
        assert process.wait(60) == (7 if expected else -signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid), "the end of the fork", 60)
