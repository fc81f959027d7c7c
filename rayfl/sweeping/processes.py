"""The processes that carry out a sweep's runs, as the sweep sees them: it sends runs and gets reports."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfl.sweeping.plan import PlannedRun

#: One thread in each: several runs share the machine's cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Report:
    """What a runner has said: ready, round, warning, done, failed, stopped; or ended, when its process has."""

    runner: "Runner"
    event: str
    what: dict[str, Any]


class Runner:
    """One process, and the run that it has in hand."""

    def __init__(self, reports: "queue.Queue[Report]", log: Path, environment: dict[str, str]) -> None:
        self.run: PlannedRun | None = None
        self.ended = False
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rayfl.sweeping.runner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Not in this process's group: Ctrl-C is for the sweep, which then asks its runners to stop.
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD, **environment},
            )
        threading.Thread(target=self._listen, args=(reports,), daemon=True).start()

    def send(self, run: PlannedRun, order: dict[str, Any]) -> None:
        """Hand over a run."""
        self.run = run
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its last report says so
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Let the round in hand end and a checkpoint be written."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self, timeout: float) -> None:
        """Wait for the process to end by itself, once it has no more to do; then kill it."""
        if self._process.stdin is not None and self.run is None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def why_it_ended(self) -> str:
        """Say how the process ended, with the last lines of its log."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed (signal 9), perhaps because memory ran out: use fewer --jobs"
        lines = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join([f"its process ended with exit code {code}", *lines])

    def _listen(self, reports: "queue.Queue[Report]") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what = json.loads(line)
            reports.put(Report(self, what.pop("event"), what))
        reports.put(Report(self, "ended", {}))
