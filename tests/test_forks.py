"""Forked processes are as good as fresh ones, where tests rely on it."""

from forks import Forked, finished

DRAW = "import ray; print(*[ray.ObjectRef.from_random().hex() for _ in range(20)])"


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
