"""A process that carries out runs of a sweep, one after the other: `python -m rayfl.sweeping.runner`.

Each line of its input is a run, as JSON; each line of its output is a report. torch is imported only once, and actors
are reused from run to run. The process ends when its input ends, even in the middle of a run, because then the sweep
was killed.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from typing import Any

from rayfl.config import Config, load_config
from rayfl.errors import RayflError
from rayfl.simulation.opening import Opener, opened_here
from rayfl.simulation.screen import NOT_TESTED, Screen
from rayfl.simulation.server import RoundRecord
from rayfl.simulation.signals import Stopped
from rayfl.simulation.starting import resume, simulate

#: Minimum seconds between two reports of a run's rounds.
REPORT_EVERY = 0.2


def main() -> None:
    """Carry out runs until there are no more."""
    # Output printed by the user's code must not mix with the reports.
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(event: str, **what: Any) -> None:
        reports.write(json.dumps({"event": event, **what}) + "\n")

    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    report("ready")
    with ExitStack() as stack:
        while (order := orders.get()) is not None:
            screen = Reporter(report)
            try:
                _carry_out(order, screen, stack)
            except Stopped:
                report("stopped")
                break
            except RayflError as error:
                report("failed", message=str(error))
            except Exception:
                report("failed", message=traceback.format_exc())
            else:
                report("done", shown=screen.last)
            orders.task_done()


def _read_orders(orders: "queue.Queue[dict[str, Any] | None]") -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    if orders.unfinished_tasks:  # nobody reads the reports any more; the run on disk can be resumed
        os._exit(1)
    orders.put(None)


def _carry_out(order: dict[str, Any], screen: "Reporter", stack: ExitStack) -> None:
    actors = order["actors"]

    def opener(_: Config) -> Opener:
        """Let the sweep decide where clients train; the run's config stays as the user wrote it."""
        return _on_ray(actors, stack) if actors else opened_here

    if order["path"] is None:
        simulate(load_config(order["config"]), opener, screen)
    else:
        resume(order["path"], opener, order["overrides"], screen)


def _on_ray(actors: int, stack: ExitStack) -> Opener:
    """Return a function that starts a federation on the sweep's Ray; its actors stay for this process's next run."""
    from rayfl.actors.cluster import connected, session
    from rayfl.actors.idle import IDLE
    from rayfl.actors.opening import opened_on_ray

    def opened(config: Config, prepared: Any, shown: Screen) -> Any:
        if not session():
            stack.enter_context(connected(config.ray))
            stack.enter_context(IDLE.held())
        config = config.model_copy(update={"ray": config.ray.model_copy(update={"actors": actors})})
        return opened_on_ray(config, prepared, shown)

    return opened


class Reporter(Screen):
    """Reports rounds and warnings instead of showing them."""

    def __init__(self, report: Any) -> None:
        super().__init__(quiet=True)
        self._report = report
        self._next = 0.0

    @property
    def last(self) -> str | None:
        """The metric of the last evaluated round; None if no round was evaluated here."""
        return None if self._shown == NOT_TESTED else self._shown

    def warn(self, text: str) -> None:
        """Report a warning."""
        self._report("warning", message=text)

    def show_round(self, record: RoundRecord) -> None:
        """Report a round, unless the last report was very recent."""
        super().show_round(record)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_EVERY
            self._report("round", round=record.number, shown=self._shown)


if __name__ == "__main__":
    main()
