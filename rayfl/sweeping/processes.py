"""The processes that carry out a sweep's runs, from the sweep's side: it sends them runs and receives reports."""

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

#: One thread per process, because several runs share the machine's cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Report:
    """A message from a runner: ready, round, warning, done, failed or stopped; or ended, after its process ended."""

    runner: "Runner"
    event: str
    what: dict[str, Any]


class Runner:
    """One process, and the run that it is working on."""

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
                # In its own process group: Ctrl-C must reach only the sweep, which then asks its runners to stop.
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD, **environment},
            )
        threading.Thread(target=self._listen, args=(reports,), daemon=True).start()

    def send(self, run: PlannedRun, order: dict[str, Any]) -> None:
        """Send a run to the process."""
        self.run = run
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and its last report says so
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Ask the process to finish the current round, write a checkpoint and stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self, timeout: float) -> None:
        """Wait until the process ends by itself; kill it after `timeout` seconds."""
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
