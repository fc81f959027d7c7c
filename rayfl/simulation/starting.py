"""A run from its config, or from its folder: check everything, start the federation, then run the rounds.

A run can be stopped or killed (even with kill -9) at any moment and resumed: its rows and last checkpoint are on disk.
"""

import json
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rayfl.config import Config, load_config, parsed_overrides
from rayfl.errors import CallbackError, ClientError, InputError, LostError, MethodError, RayflError
from rayfl.own_code import exits_told, named_again, named_code, named_objects
from rayfl.results import Run, Storage, check_tables, load, load_begun, read_stopped, written_config
from rayfl.simulation.callbacks import Callback, Callbacks, RunFacts, make_callbacks
from rayfl.simulation.checkpoints import Checkpoints, as_config, refuse_changes
from rayfl.simulation.folder import check_output, new_folder
from rayfl.simulation.opening import OpenerOf
from rayfl.simulation.preparation import prepare, resolve, task_metrics
from rayfl.simulation.screen import Screen
from rayfl.simulation.signals import Stop, Stopped, stopping
from rayfl.simulation.simulation import Simulation

Overrides = Sequence[str] | Mapping[str, Any]


def simulate(config: Config, opener: OpenerOf, screen: Screen | None = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Run `config` on the federation that `opener` returns for it; bad input is refused before anything is written.

    `callbacks` are used in addition to those that the config names.
    """
    with stopping() as stop, exits_told():
        config = resolve(config)
        told = Callbacks(make_callbacks(config.callbacks, callbacks))
        check_output(config)
        return _carry_out(config, opener, new_folder, None, told, screen or Screen(), stop)


def resume(
    path: str | Path,
    opener: OpenerOf,
    overrides: Overrides = (),
    screen: Screen | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continue the run in the folder `path`, with bit-identical results.

    Overrides may change how the run is carried out (`ray`, `federation`, `callbacks`, ...) and give it more rounds.
    """
    screen = screen or Screen()
    load_begun(path)  # do not create a lock in a folder that is not a run's
    storage = Storage(path)
    storage.check()
    # Take the lock first: without it, another process may continue the run, and what we read would be out of date.
    with stopping() as stop, exits_told(), storage.locked():
        run = load_begun(path)
        config = load_config(run.config, overrides)
        refuse_changes(run.config, config)
        refuse_unnamed_code(run, overrides)
        if config.rounds < run.config.rounds:
            raise InputError(f"rounds={config.rounds}: a run of {run.config.rounds} rounds can only be given more")
        config = resolve(config)
        told = Callbacks(make_callbacks(config.callbacks, callbacks))
        checkpoints = Checkpoints(storage, config)
        begun = checkpoints.find()
        which = {"sketches": config.output.sketches > 0, "newcomers": config.arrive is not None}
        written = check_tables(storage, begun, config.method.name, config.seed, task_metrics(config.task), **which)
        if (then := written_config(storage)) is not None:
            refuse_changes(as_config(then, f"{storage.path}/rounds"), config)
        if (complete := _complete(run, config, written)) is not None:
            screen.say(complete)
            screen.summarise(run)
            return run
        screen.say(f"going on after round {begun} of {config.rounds}")
        stopped = read_stopped(storage)
        passed = stopped.round if stopped is not None and stopped.rounds < config.rounds else 0
        return _carry_out(config, opener, lambda _: nullcontext(storage), checkpoints, told, screen, stop, passed)


def _complete(run: Run, config: Config, written: int) -> str | None:
    """Return a message if the run is complete and is not given more rounds; None if there is something left to do."""
    if config.rounds > run.config.rounds:
        return None
    stopped = run.stopped_early
    if stopped is not None and written >= stopped.round:
        return (
            f"the run was stopped early after round {stopped.round} of {stopped.rounds} and is complete:"
            f" {stopped.reason}; to continue it anyway, give it more than {stopped.rounds} rounds with rounds=..."
        )
    if written >= config.rounds:
        return f"all {config.rounds} rounds are done; for more rounds, give rounds=..."
    return None


def _carry_out(
    config: Config,
    opener: OpenerOf,
    folder: Callable[[Config], AbstractContextManager[Storage]],
    found: Checkpoints | None,
    callbacks: Callbacks,
    screen: Screen,
    stop: Stop,
    passed: int = 0,
) -> Run:
    """Run all rounds, or those after the checkpoint that was found; open `folder` only when everything else is ready.

    A separate thread loads the data and builds the model, while Ray and the actors start.
    """
    opened = opener(config)  # may import Ray: do it before the loader's imports, or the two would block each other
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(prepare, config)
        with opened(config, loading.result, screen) as (server, prepared):
            config = prepared.config
            callbacks.check(RunFacts.of(prepared))
            screen.say(f"training: {config.training}")
            if prepared.gpu_memory is not None:
                screen.say(str(prepared.gpu_memory))
            stop.between_rounds()  # before the folder is created, so that no empty folder is left behind
            with folder(config) as storage:
                checkpoints = Checkpoints(storage, config, prepared, found=found)
                simulation = Simulation(
                    server,
                    prepared,
                    storage,
                    checkpoints,
                    callbacks,
                    screen,
                    stop,
                    resumed=found is not None,
                    passed=passed,
                )
                with _how_to_go_on(storage, checkpoints, config, stop):
                    simulation.run()
    run = load(storage)
    callbacks.end(run)
    screen.summarise(run)
    return run


@contextmanager
def _how_to_go_on(storage: Storage, checkpoints: Checkpoints, config: Config, stop: Stop) -> Iterator[None]:
    """Add to every error that ends a run how to resume the run."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(stop.asked or signal.SIGINT, f"stopped; {_resumable(storage, checkpoints, config)}") from None
    except (CallbackError, ClientError, MethodError) as error:
        raise type(error)(f"{error}\nonce that is fixed, {_resumable(storage, checkpoints, config)}") from None
    except LostError as error:
        raise RayflError(f"{error}; {_resumable(storage, checkpoints, config)}") from None
    except OSError as error:
        raise RayflError(
            f"{storage.path} cannot be written to: {error.strerror or error}; fix that, then"
            f" {_resumable(storage, checkpoints, config)}"
        ) from None


def refuse_unnamed_code(run: Run, overrides: Overrides) -> None:
    """Refuse to import code that the user has not named, because the folder's config may come from anybody."""
    code, named = named_code(run.config), _values(overrides)
    unnamed = {key: names for key, names in code.items() if not set(names) <= _names_in(named.get(key))}
    if unnamed:
        words = _named_again(run.config)
        given = [] if isinstance(overrides, Mapping) else [o for o in overrides if o.partition("=")[0] not in code]
        raise InputError(
            f"the config in {run.path} names code to be imported, {' and '.join(words)}: if you trust it, name it too:"
            f" {shlex.join(['rayfl', 'resume', run.path, *words, *given])}"
        )


def _values(overrides: Overrides) -> dict[str, Any]:
    """Return overrides by dotted key; `method={"name": ...}` becomes method.name."""
    found: dict[str, Any] = {}
    for key, value in parsed_overrides(overrides):
        found[key] = value
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": each for inner, each in value.items()}
    return found


def _names_in(value: Any) -> set[str]:
    """Return the names in an override: the value itself, or those in a list of callbacks or of parts."""
    entries = value if isinstance(value, list | tuple) else [value]
    return {str(entry.get("name", entry.get("kind")) if isinstance(entry, Mapping) else entry) for entry in entries}


def _named_again(config: Config) -> list[str]:
    """Return the overrides that name a config's code."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in named_again(config).items()
    ]


def _resumable(storage: Storage, checkpoints: Checkpoints, config: Config) -> str:
    secrets = "; give the secrets of the URI again, they are not shown here" if storage.has_secrets else ""
    command = shlex.join(["rayfl", "resume", storage.path, *_named_again(config)])
    if objects := named_objects(config):  # these cannot be typed
        arguments = [f"{argument}=..." for argument in dict.fromkeys(key.partition(".")[0] for key in objects)]
        command = f"rayfl.resume({', '.join([repr(storage.path), *arguments])}), in Python"
    return f"go on after round {checkpoints.round} with: {command}{secrets}"
