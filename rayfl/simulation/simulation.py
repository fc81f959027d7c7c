"""The rounds of one run: each is run, reported to the callbacks, and written; after a failure, some are repeated.

The federation and the folder already exist; `starting` creates them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rayfl.client.allocator import return_freed_memory
from rayfl.errors import LostError, NobodyLeftError
from rayfl.results import RunWriter, StoppedEarly, Storage, run_name, write_client_names, write_stopped
from rayfl.simulation.callbacks import Callbacks, RunFacts
from rayfl.simulation.checkpoints import Checkpoints
from rayfl.simulation.final_models import save_models
from rayfl.simulation.folder import CONFIG, config_file
from rayfl.simulation.opening import RunsRounds
from rayfl.simulation.preparation import Prepared
from rayfl.simulation.screen import Screen
from rayfl.simulation.server import RoundRecord
from rayfl.simulation.signals import Stop, Stopped

#: How many times in a row a round may fail before the run gives up, because something kills its actors each time.
MOST_LOSSES = 5


class Simulation:
    """One run, from its last checkpoint to its last round.

    After a failure (a dead actor, a lost node) it goes back to the last checkpoint. Repeated rounds give the same bits,
    so each round is reported to the callbacks once, and written once.
    """

    def __init__(
        self,
        server: RunsRounds,
        prepared: Prepared,
        storage: Storage,
        checkpoints: Checkpoints,
        callbacks: Callbacks,
        screen: Screen,
        stop: Stop,
        *,
        resumed: bool,
        passed: int = 0,
    ) -> None:
        """Callbacks cannot stop the run up to round `passed`: one did so there, and the run was given more rounds."""
        self._config, self._prepared = prepared.config, prepared
        self._server, self._storage, self._checkpoints = server, storage, checkpoints
        self._callbacks, self._screen, self._stop = callbacks, screen, stop
        self._resumed, self._passed = resumed, passed
        self._last = self._config.rounds
        self._stopped: StoppedEarly | None = None
        self._number = checkpoints.round + 1
        self._written = checkpoints.round
        self._failed = False
        self._failures = 0  # since the last round that was written
        self._recoveries: list[str] = []

    def run(self) -> None:
        """Run all remaining rounds."""
        begun = self._checkpoints.round
        for note in self._prepared.notes:
            self._screen.warn(note)
        self._restore()
        if self._resumed:  # a new folder already has its config
            self._storage.write(CONFIG, config_file(self._config))
        if (names := self._prepared.partition.client_names) is not None:
            write_client_names(self._storage, names)
        with self._tables(), self._screen.rounds(self._config.rounds, done=begun):
            self._start_callbacks()
            while self._number <= self._last:
                self._advance()
            self._stop.tidy_up()
        if self._stopped is not None:
            self._screen.say(f"stopped early after round {self._last} of {self._config.rounds}: {self._stopped.reason}")
        if self._checkpoints.round > begun:
            self._screen.say(f"checkpoints took {self._checkpoints.share_of_time:.1%} of the time")

    # -- the beginning -----------------------------------------------------------------------------------------

    def _restore(self) -> None:
        try:
            self._checkpoints.bring_back(self._server)
        except LostError as error:
            self._failed = True
            self._screen.warn(str(error))

    @contextmanager
    def _tables(self) -> Iterator[None]:
        config = self._config
        # Without these keys, which may change when the run is resumed.
        note = {k: v for k, v in config.to_tree().items() if k not in ("name", "callbacks", "ray", "state", "output")}
        with RunWriter(
            self._storage,
            run_name(self._storage),
            config.method.name,
            config.seed,
            resume_after=self._checkpoints.round if self._resumed else None,
            config=note,
            metrics=self._prepared.facts.metrics,
            sketches=config.output.sketches > 0,
            newcomers=config.arrive is not None,
            notes=self._prepared.fingerprints.note(),
        ) as self._writer:
            yield

    def _start_callbacks(self) -> None:
        states = self._checkpoints.callback_states()
        for name in self._callbacks.missing(states):
            self._screen.warn(f"the run had a callback {name}, which is not given now: the run goes on without it")
        self._callbacks.start(RunFacts.of(self._prepared, self._storage.path, self._checkpoints.round), states)

    # -- a round -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Recover from an earlier failure, if any, and run the next round. The next call handles a new failure."""
        try:
            if self._failed:
                self._recover()
            self._round()
        except NobodyLeftError:
            raise
        except LostError as error:
            self._note_failure(error)
            return
        self._number += 1
        if self._stop.asked and self._number <= self._last:
            self._stop.tidy_up()
            raise Stopped(self._stop.asked)

    def _round(self) -> None:
        record = self._server.run_round(self._number)
        self._report(record)
        if self._number > self._written:
            self._save_models()  # before the row, because a run whose last row is written counts as complete
            self._write(record)
        if self._stopped is not None and self._number == self._last:
            self._writer.flush()
            write_stopped(self._storage, self._stopped)
        self._write_checkpoint()

    def _report(self, record: RoundRecord) -> None:
        reason = self._callbacks.report(record)
        if reason is not None and self._passed < self._number < self._config.rounds:
            self._stopped = StoppedEarly(self._number, self._config.rounds, reason)
            self._last = self._number

    def _save_models(self) -> None:
        last = self._number == self._last
        which = self._config.output.models if last else self._callbacks.models_to_save(self._number)
        if which != "none":
            save_models(self._server, self._prepared, self._storage, self._number, which, last)

    def _write(self, record: RoundRecord) -> None:
        if self._recoveries:
            record = replace(record, extras={**record.extras, "recoveries": self._recoveries})
        self._writer.write_round(
            record.number,
            record.summary,
            record.clients,
            record.clusters,
            record.extras,
            record.sketches,
            record.newcomers,
        )
        for warning in record.warnings:
            self._screen.warn(warning)
        self._screen.show_round(record)
        self._written, self._failures, self._recoveries = self._number, 0, []

    def _write_checkpoint(self) -> None:
        """Write a checkpoint if it is due, or if the run ends here but could be given more rounds."""
        number, wanted = self._number, self._config.output.checkpoint_every != 0
        ends_early = number < self._config.rounds and (bool(self._stop.asked) or (number == self._last and wanted))
        if self._checkpoints.is_due(number) or ends_early:
            self._writer.flush()
            self._checkpoints.write(self._server, self._callbacks.states_after(number))
            self._callbacks.forget_before(number)

    # -- failures ----------------------------------------------------------------------------------------------

    def _note_failure(self, error: LostError) -> None:
        self._failed = True
        self._failures += 1
        self._screen.warn(f"round {self._number}: {error}")
        if self._failures >= MOST_LOSSES:
            raise LostError(
                f"round {self._number} was lost {self._failures} times in a row, last because of {error}"
            ) from None

    def _recover(self) -> None:
        what = self._server.recover()
        self._checkpoints.bring_back(self._server)
        return_freed_memory()
        self._number, self._failed = self._checkpoints.round + 1, False
        self._recoveries.append(what)
        self._screen.say(f"{what}, from round {self._number}")
