"""One run from config to Parquet: check everything, start the federation, stream what each round gives.

A run can be left at any moment, by choice or by kill -9, and resumed: its rows and its last checkpoint are on disk.
"""

import shlex
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from rayfl.client.allocator import return_freed_memory
from rayfl.config import Config, load_config
from rayfl.errors import ClientError, InputError, LostError, MethodError, NobodyLeftError, RayflError
from rayfl.own_code import exits_told
from rayfl.results import Run, RunWriter, Storage, check_tables, load, load_begun, run_name, written_config
from rayfl.simulation.checkpoints import Checkpoints, as_config, refuse_changes
from rayfl.simulation.opening import OpenerOf, RunsRounds
from rayfl.simulation.preparation import prepare, resolve, task_metrics
from rayfl.simulation.screen import Screen
from rayfl.simulation.signals import Stop, Stopped, stopping
from rayfl.version import __version__

#: So often in a row may the same round be lost before the run gives up: something kills its actors each time.
MOST_LOSSES = 5


def simulate(config: Config, opener: OpenerOf, screen: Screen | None = None) -> Run:
    """Run `config` on the federation that `opener` finds for it; bad input is told before anything is written."""
    with stopping() as stop, exits_told():
        config = resolve(config)
        _check_output(config)
        return _carry_out(config, opener, _new_folder, None, screen or Screen(), stop)


def resume(path: str | Path, opener: OpenerOf, overrides: Sequence[str] = (), screen: Screen | None = None) -> Run:
    """Go on with the run in the folder `path`, to the same bits.

    Overrides may change how it is carried out (`ray`, `federation`, ...) and give it more rounds.
    """
    screen = screen or Screen()
    load_begun(path)  # what is no run folder gets no lock either
    storage = Storage(path)
    storage.check()
    # The lock first: until then another process may go on with the run, and what was read would be out of date.
    with stopping() as stop, exits_told(), storage.locked():
        run = load_begun(path)
        config = load_config(run.config, overrides)
        refuse_changes(run.config, config)
        _refuse_unnamed_code(run, overrides)
        if config.rounds < run.config.rounds:
            raise InputError(f"rounds={config.rounds}: a run of {run.config.rounds} rounds can only be given more")
        config = resolve(config)
        checkpoints = Checkpoints(storage, config)
        begun = checkpoints.find()
        written = check_tables(storage, begun, config.method.name, config.seed, task_metrics(config.task))
        if (then := written_config(storage)) is not None:
            refuse_changes(as_config(then, f"{storage.path}/rounds"), config)
        if written >= config.rounds and config.rounds == run.config.rounds:
            screen.say(f"all {config.rounds} rounds are there; raise them with rounds=...")
            screen.summarise(run)
            return run
        screen.say(f"going on after round {begun} of {config.rounds}")
        return _carry_out(config, opener, lambda _: nullcontext(storage), checkpoints, screen, stop)


def _carry_out(
    config: Config,
    opener: OpenerOf,
    folder: Callable[[Config], AbstractContextManager[Storage]],
    found: Checkpoints | None,
    screen: Screen,
    stop: Stop,
) -> Run:
    """Run all rounds, or those after the checkpoint that was found, and write to `folder`, opened once all is ready.

    Data load and the model is built in a thread of their own, while Ray and the actors start.
    """
    opened = opener(config)  # imports Ray, if need be: before the loader's imports, or the two would hold each other up
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(prepare, config)
        with opened(config, loading.result, screen) as (server, prepared):
            config = prepared.config
            screen.say(f"training: {config.training}")
            if prepared.gpu_memory is not None:
                screen.say(str(prepared.gpu_memory))
            stop.between_rounds()  # before there is a folder, so that it never stays behind empty
            with folder(config) as storage:
                checkpoints = Checkpoints(storage, config, prepared, found=found)
                with _how_to_go_on(storage, checkpoints, stop):
                    _run_rounds(config, server, checkpoints, storage, found is not None, screen, stop)
    run = load(storage)
    screen.summarise(run)
    return run


@contextmanager
def _how_to_go_on(storage: Storage, checkpoints: Checkpoints, stop: Stop) -> Iterator[None]:
    """Let every end of a run that can be resumed say how."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(stop.asked or signal.SIGINT, f"stopped; {_resumable(storage, checkpoints)}") from None
    except (ClientError, MethodError) as error:
        raise type(error)(f"{error}\nonce that is fixed, {_resumable(storage, checkpoints)}") from None
    except LostError as error:
        raise RayflError(f"{error}; {_resumable(storage, checkpoints)}") from None
    except OSError as error:
        raise RayflError(
            f"{storage.path} cannot be written to: {error.strerror or error}; fix that, then"
            f" {_resumable(storage, checkpoints)}"
        ) from None


def _run_rounds(
    config: Config,
    server: RunsRounds,
    checkpoints: Checkpoints,
    storage: Storage,
    resumed: bool,
    screen: Screen,
    stop: Stop,
) -> None:
    """Go on from the last checkpoint, if there is one, and write what each round gives."""
    lost = False
    try:
        checkpoints.bring_back(server)
    except LostError as error:
        lost = True
        screen.warn(str(error))
    if resumed:  # a new folder was made with it
        storage.write("config.yaml", _config_file(config))
    begun = checkpoints.round
    name, after = run_name(storage), begun if resumed else None
    with (
        RunWriter(
            storage,
            name,
            config.method.name,
            config.seed,
            resume_after=after,
            metrics=task_metrics(config.task),
            # Without what may change from one resume to the next.
            config={k: v for k, v in config.to_tree().items() if k not in ("name", "ray", "state", "output")},
        ) as writer,
        screen.rounds(config.rounds, done=begun),
    ):
        course = _Course(config, server, checkpoints, writer, screen, lost)
        while course.number <= config.rounds:
            course.advance(stop)
    if checkpoints.round > begun:
        screen.say(f"checkpoints took {checkpoints.share_of_time:.1%} of the time")


class _Course:
    """A run's way through its rounds: after a loss back to the last checkpoint, and no row is written twice."""

    def __init__(
        self,
        config: Config,
        server: RunsRounds,
        checkpoints: Checkpoints,
        writer: RunWriter,
        screen: Screen,
        lost: bool,
    ) -> None:
        self._config, self._server, self._checkpoints = config, server, checkpoints
        self._writer, self._screen = writer, screen
        self.number = checkpoints.round + 1
        self._written = checkpoints.round
        self._losses = 0  # since the last row
        self._lost = lost
        self._recoveries: list[str] = []

    def advance(self, stop: Stop) -> None:
        """Run the next round, after recovering from the last loss; a loss on the way is for the next call."""
        try:
            if self._lost:
                self._recover()
            self._round()
            if self._checkpoints.is_due(self.number) or (stop.asked and self.number < self._config.rounds):
                self._writer.flush()
                self._checkpoints.write(self._server)
        except NobodyLeftError:
            raise
        except LostError as error:
            self._lost = True
            self._losses += 1
            self._screen.warn(f"round {self.number}: {error}")
            if self._losses >= MOST_LOSSES:
                raise LostError(
                    f"round {self.number} was lost {self._losses} times in a row, last by {error}"
                ) from None
            return
        self.number += 1
        if stop.asked and self.number <= self._config.rounds:
            raise Stopped(stop.asked)

    def _recover(self) -> None:
        what = self._server.recover()
        self._checkpoints.bring_back(self._server)
        return_freed_memory()
        self.number, self._lost = self._checkpoints.round + 1, False
        self._recoveries.append(what)
        self._screen.say(f"{what}, from round {self.number}")

    def _round(self) -> None:
        record = self._server.run_round(self.number)
        if self.number <= self._written:
            return
        extras = {**record.extras, **({"recoveries": self._recoveries} if self._recoveries else {})}
        self._writer.write_round(self.number, record.summary, record.clients, record.clusters, extras)
        self._screen.show_round(record)
        self._written, self._losses, self._recoveries = self.number, 0, []


def _config_file(config: Config) -> bytes:
    return f"# rayfl {__version__}\n{config.to_yaml()}".encode()


def _refuse_unnamed_code(run: Run, overrides: Sequence[str]) -> None:
    """Import only what the user has named: a folder's config may be somebody else's."""
    code = [f"{key}={value}" for key, value in run.config.named_code().items()]
    if set(code) - set(overrides):
        raise InputError(
            f"the config in {run.path} names code to be imported, {' and '.join(code)}: if you trust it, name it too:"
            f" rayfl resume {shlex.quote(run.path)} {' '.join(code)}"
        )


def _resumable(storage: Storage, checkpoints: Checkpoints) -> str:
    secrets = "; give the secrets of the URI again, they are not shown here" if storage.has_secrets else ""
    return f"go on after round {checkpoints.round} with: rayfl resume {shlex.quote(storage.path)}{secrets}"


def _check_output(config: Config) -> None:
    """Make sure, before anything starts, that the run can write and that nothing has its name yet."""
    base = Storage(config.output.dir)
    base.check()
    if config.name is not None and base.exists(config.name):
        raise InputError(_taken(base.folder(config.name)))


@contextmanager
def _new_folder(config: Config) -> Iterator[Storage]:
    """Make the run's folder, with its config in it, and lock it; one that another run has made is left alone."""
    base, first = Storage(config.output.dir), ("config.yaml", _config_file(config))
    if config.name is not None:
        storage = base.folder(config.name)
        if not storage.claim(*first):
            raise InputError(_taken(storage))
    else:
        storage = next(folder for folder in map(base.folder, _names(config)) if folder.claim(*first))
    with storage.locked():
        yield storage


def _names(config: Config) -> Iterator[str]:
    """Yield names for a run without one, until one is free: runs may start in the same second."""
    method = config.method.name.rpartition(":")[2]
    stem = f"{config.data.source}-{method}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    if "://" not in Storage(config.output.dir).path:
        yield stem
        yield from (f"{stem}-{number}" for number in range(2, 1000))
    while True:  # by chance, where object stores cannot tell who was first
        yield f"{stem}-{uuid.uuid4().hex[:8]}"


def _taken(storage: Storage) -> str:
    return (
        f"{storage.path} is there already, and results are never overwritten: choose another name or output.dir, or"
        " remove the folder"
    )
