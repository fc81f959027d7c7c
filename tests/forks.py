"""Python processes that need not import torch, Ray and rayfl: forks of one that has, which saves four CPU seconds each.

`Forked` is for commands of rayfl and other programs, `python()` for processes that those start. As the
`setup_worker_path` of a Ray, this file does the same for Ray's workers. Tests of how a process itself starts or ends
use `subprocess`.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

#: `rayfl.cli` itself is not among them, because `python -m rayfl.cli` runs it as `__main__`.
IMPORTED = ["rayfl.launch", "rayfl.actors.opening", "rayfl.sweeping.sweep", "rayfl.federation.serial"]
IMPORTED += ["rayfl.data.sources", "typer"]
#: Imported only when they are needed, as they are in every run.
IMPORTED += ["sklearn.datasets", "scipy.optimize", "safetensors.numpy", "pyarrow.pandas_compat", "rich.progress"]
IMPORTED += ["ray._private.node"]
#: Workers are forks, and of Ray's own processes tests need neither the autoscaler nor the one that copies logs.
LEAN = {"setup_worker_path": __file__, "no_monitor": True, "include_log_monitor": False}
#: Seconds between two looks whether the parent is still there.
LOOK_EVERY = 0.5
#: Random ids of Ray that a fork leaves to the one before it; a process draws a few.
IDS = 100
#: Bytes of the longest request, which has the words, folder and environment of a process.
LONGEST = 2**18


# -- for tests -----------------------------------------------------------------------------------------------------


class Forked:
    """A process with the words of `python ...` (`-m module`, `-c code` or a script); used like `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        output: IO[Any] | None = None,
    ) -> None:
        """Start it. Both of its streams go to `output`, if that is given."""
        self.returncode: int | None = None
        self._streams = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        streams = [output, output] if output else self._streams
        with Path(os.devnull).open() as nothing:
            self._answers = _ask(_server()[0], words, cwd, env, [nothing, *streams])
        self.pid = int(self._answers.recv(100))

    def poll(self) -> int | None:
        """Return the exit code (negative after a signal), or None while it runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._answers.recv(100))
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end."""
        if self.returncode is None:
            select.select([self._answers], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end, and return what it wrote to its two streams."""
        self.wait(timeout)
        for stream in self._streams:
            stream.seek(0)
        out, err = (stream.read() for stream in self._streams)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9."""
        self.send_signal(signal.SIGKILL)


def finished(words: Sequence[str], timeout: float, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Start a process and wait for its end, as `subprocess.run` does."""
    process = Forked(words, **options)
    out, err = process.communicate(timeout)
    return subprocess.CompletedProcess(list(words), process.wait(0), out, err)


def python() -> str:
    """Return a program that is used like Python, and is a fork; for `sys.executable` of one that starts others.

    It passes signals on. If it is killed, so is the fork.
    """
    return _server()[1]


@functools.cache
def _server() -> tuple[socket.socket, str]:
    """Start the process that imports, and that the others are forks of; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="forks")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place, program = f"{folder}/requests", Path(folder, "python")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} --as-python {place} "$@"\n')
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(place)
        command = [sys.executable, __file__, "--serve", str(theirs.fileno()), str(program)]
        subprocess.Popen(command, pass_fds=[theirs.fileno()])
    return _connected(place), str(program)


def _connected(place: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.connect(place)
    return server


def _ask(
    server: socket.socket,
    words: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    streams: Sequence[IO[Any]],
    own_group: bool = False,
    tied: bool = False,
) -> socket.socket:
    """Ask for a process; return the socket on which its id comes, and later its exit code.

    If it is `tied`, it is killed when the socket is closed, as it is when the process that asked is killed.
    """
    request = json.dumps([list(words), str(cwd or Path.cwd()), dict(env or os.environ), own_group, tied]).encode()
    answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(server, [request], [*(stream.fileno() for stream in streams), theirs.fileno()])
    return answers


# -- in the process that imports, and in its forks -----------------------------------------------------------------


def serve(requests: socket.socket, python: str) -> None:
    """Import everything, then be each process that is asked for, in a fork; end when the parent has ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    import ray._raylet

    ray._raylet.setproctitle(ray._raylet.getproctitle())  # finds the place of the title, before the environment moves
    gc.freeze()  # else a fork copies all pages when its garbage is collected
    words, folder, environment, own_group, _ = json.loads(_fork_on_request(requests))
    _let_start_forks(python)
    _run(words, folder, environment, own_group)


def _let_start_forks(python: str) -> None:
    """Let also those be forks that this process starts: the runners of a sweep, and the workers of a Ray of its own."""
    from ray._private.parameter import RayParams

    import rayfl.sweeping.processes

    rayfl.sweeping.processes.sys = types.SimpleNamespace(executable=python)  # type: ignore[assignment]
    RayParams.__init__ = functools.partialmethod(RayParams.__init__, **LEAN)


def _fork_on_request(requests: socket.socket) -> bytes:
    """Fork for each request, and answer with its process id and its exit code. A fork returns its request."""
    running: dict[int, socket.socket] = {}
    tied: dict[socket.socket, int] = {}
    forks = 0
    parent = os.getppid()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while os.getppid() == parent:
        ready, _, _ = select.select([requests, woken, *tied], [], [], LOOK_EVERY)
        if woken in ready:
            os.read(woken, 1000)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with running.pop(ended[0]) as answers, suppress(OSError):
                    tied.pop(answers, None)
                    answers.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
        for closed in set(ready) & tied.keys():
            os.kill(tied.pop(closed), signal.SIGKILL)
        if requests not in ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(requests, LONGEST, 4)
        forks += 1
        if pid := os.fork():
            running[pid] = socket.socket(fileno=descriptors.pop())
            if json.loads(request)[-1]:
                tied[running[pid]] = pid
            with suppress(BrokenPipeError):
                running[pid].send(str(pid).encode())
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        for descriptor in (*descriptors, woken, wakes):
            os.close(descriptor)
        for opened in (requests, *running.values()):
            opened.close()
        _draw_ids(forks * IDS)
        return request
    os._exit(0)


def _draw_ids(count: int) -> None:
    """Let Ray draw random ids, so that no two forks have the same: all inherit one state of its generator.

    Workers that start at the same moment and put an object of the same id end, and what they were started for never
    begins.
    """
    import ray

    for _ in range(count):
        ray.ObjectRef.from_random()


def _run(words: list[str], folder: str, environment: dict[str, str], own_group: bool) -> None:
    """Be `python` with these words, as far as programs can see."""
    import ray._raylet

    if own_group:
        os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    ray._raylet.Config.initialize("")  # it has read the environment of the process that imported it
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(program))
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        program.__file__ = words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(program))


# -- as Python -------------------------------------------------------------------------------------------------------


def be_python(place: str, words: list[str]) -> None:
    """Let a fork do what Python was started for, and end as it ends."""
    waiting: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: waiting.append(number))
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    with _connected(place) as server:
        streams = [sys.stdin, sys.stdout, sys.stderr]
        answers = _ask(server, words, None, None, streams, own_group=True, tied=True)
    pid = int(answers.recv(100))

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for number in waiting:
        pass_on(number, None)
    code = int(answers.recv(100) or -signal.SIGKILL)
    if code >= 0:
        os._exit(code)
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


# -- as the program with which Ray starts a worker -----------------------------------------------------------------


def start_worker(words: list[str]) -> None:
    """Let a fork be this worker. The first worker of a node becomes the process that imports; it ends with the node."""
    script = next(number for number, word in enumerate(words) if not word.startswith("-"))
    own = ("--language=", "--serialized-runtime-env-context=")
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    context = json.loads(options.get("--serialized-runtime-env-context") or "{}")
    if context.get("env_vars") or context.get("command_prefix"):  # a Python of its own
        setup = Path(words[script]).with_name("setup_worker.py")
        os.execv(sys.executable, [sys.executable, str(setup), *words])
    node = options["--raylet-name"]
    requests = _bound(f"{node}.forks")
    with _connected(f"{node}.forks") as server:
        worker = [word for word in words[script:] if not word.startswith(own)]
        # When a worker has ended, Ray kills its group.
        answers = _ask(server, worker, None, None, [sys.stdin, sys.stdout, sys.stderr], own_group=True)
    if requests is None:
        answers.recv(100)
        return
    answers.close()
    # Ray reads its job when it is imported. A worker of no job, as Ray keeps some ready, takes that of its first task.
    os.environ["RAY_JOB_ID"] = "ffffffff"
    serve(requests, sys.executable)


def _bound(place: str) -> socket.socket | None:
    """Return a socket for requests at this place, or None if another process answers there."""
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        requests.bind(place)
    except OSError:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            try:
                other.connect(place)
            except ConnectionRefusedError:  # Ray has killed it: it took too long
                Path(place).unlink(missing_ok=True)
                return _bound(place)
        requests.close()
        return None
    return requests


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])
    elif sys.argv[1] == "--as-python":
        be_python(sys.argv[2], sys.argv[3:])
    else:
        start_worker(sys.argv[1:])
