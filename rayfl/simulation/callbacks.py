"""Callbacks: they follow a run and may stop it. Also: which ones a config can name, and their state in checkpoints.

Callbacks run in the process that started the run. The built-in callbacks are here and in `early_stopping`.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.config import CallbackConfig, Config, ModelsToSave
from rayfl.errors import CallbackError, InputError, closest, shown
from rayfl.own_code import import_module_of, reason, told_as
from rayfl.packing import Packed, pack, unpack

if TYPE_CHECKING:
    from rayfl.results import Run
    from rayfl.simulation.preparation import Prepared
    from rayfl.simulation.server import RoundRecord


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run before its first round."""

    config: Config
    n_train: np.ndarray  # training samples of each client
    n_validation: np.ndarray
    n_test: np.ndarray
    true_cluster: np.ndarray | None  # the planted cluster of each client, if there are any
    path: str = ""  # the run's folder or URI; empty before the folder is created
    round: int = 0  # the round after which the run continues

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.n_train)

    @classmethod
    def of(cls, prepared: "Prepared", path: str = "", round: int = 0) -> "RunFacts":
        """Collect the facts from a prepared run."""
        facts, truth = prepared.facts, prepared.partition.true_cluster
        return cls(prepared.config, facts.n_train, facts.n_validation, facts.n_test, truth, path, round)


class Callback:
    """Subclass this and write the methods that you need.

    Name the class in a config (`callbacks: [package.module:Class]`) or pass an object: `rayfl.run(callbacks=[...])`.

    Keep what the callback must remember from round to round in `self.state`: a dataclass or a dict of numbers, text and
    numpy arrays, set in `on_start`. Checkpoints save it, and a resumed run restores it after `on_start`.
    """

    state: Any = None

    def check(self, run: RunFacts) -> Sequence[str]:
        """Return a message for each problem with this run's config. Called before anything is written."""
        return ()

    def on_start(self, run: RunFacts) -> None:
        """Called at the start: the run's folder exists, and no round has run in this process."""

    def on_round_end(self, record: "RoundRecord") -> bool | str | None:
        """Called after each round. Return True, or a text with the reason, to end the run after this round.

        Each round is reported once per process. Rounds that are repeated after a failure are not reported again; a
        resumed run reports the rounds after its checkpoint.
        """
        return None

    def models_to_save(self, number: int) -> ModelsToSave:
        """Return which models to save after round `number`, in models/round-<number>. Called after `on_round_end`.

        Not called after the last round, for which output.models decides.
        """
        return "none"

    def on_end(self, run: "Run") -> None:
        """Called at the end: all rounds are done, or a callback has ended the run. Not called if the run fails."""


class SaveModels(Callback):
    """Save models during the run, every `every` rounds."""

    def __init__(self, every: int = 10, models: ModelsToSave = "shared") -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InputError(f"save_models.every={shown(every)}: give a number of rounds, 1 or more")
        if models not in ("shared", "all"):
            raise InputError(f"save_models.models={shown(models)} is not allowed; allowed: shared, all")
        self.every, self.models = every, models

    def models_to_save(self, number: int) -> ModelsToSave:
        """Save models after every n-th round."""
        return self.models if number % self.every == 0 else "none"


def built_in() -> dict[str, type[Callback]]:
    """Return the callbacks that a config can name without a module."""
    from rayfl.simulation.early_stopping import EarlyStopping

    return {"early_stopping": EarlyStopping, "save_models": SaveModels}


def make_callbacks(configs: Sequence[CallbackConfig], objects: Sequence[Any] = ()) -> list[Callback]:
    """Return the callbacks that a config names, and those given as objects; refuse invalid ones."""
    made = [_made(f"callbacks.{at}", config) for at, config in enumerate(configs)]
    for callback in objects:
        if not isinstance(callback, Callback):
            made_how = " is a class: give an object of it" if isinstance(callback, type) else " is no rayfl.Callback"
            raise InputError(
                f"callbacks: {shown(callback)}{made_how}; subclass rayfl.Callback and give an object of it"
            )
    return [*made, *objects]


def _made(key: str, config: CallbackConfig) -> Callback:
    cls = _found(key, config.name)
    parameters = inspect.signature(cls).parameters
    allowed = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    faults = [
        f"{key}.{name}={shown(value)}: {config.name} has no option '{name}'{closest(name, allowed)};"
        f" allowed: {', '.join(allowed) or 'none'}"
        for name, value in config.options.items()
        if name not in allowed and not takes_any
    ]
    faults += [
        f"{key}.{name} is missing: {config.name} needs it"
        for name in allowed
        if parameters[name].default is inspect.Parameter.empty and name not in config.options
    ]
    if faults:
        raise InputError(*faults)
    try:
        return cls(**config.options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{key}: {config.name} cannot be made: {reason(error)}") from error


def _found(key: str, name: str) -> type[Callback]:
    known = built_in()
    if ":" not in name:
        if name not in known:
            raise InputError(
                f"{key}.name={shown(name)} is not allowed{closest(name, list(known))};"
                f" allowed: {', '.join(known)}, or package.module:Class"
            )
        return known[name]
    module, attribute = import_module_of(f"{key}.name", name)
    found = getattr(module, attribute, None)
    if found is None:
        raise InputError(f"{key}.name={name}: {module.__name__} has no {attribute}")
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise InputError(f"{key}.name={name} is not a subclass of rayfl.Callback")
    return found


class Callbacks:
    """The callbacks of one run: reports each round to all of them once, and keeps their states for checkpoints.

    A checkpoint of round q needs the states as they were after round q. While rounds are repeated after a failure, the
    callbacks are ahead of the server, so the states after each round since the last checkpoint are kept here.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._named = _named(callbacks)
        self._reported = 0
        self._states: dict[int, dict[str, Packed]] = {}

    def check(self, run: RunFacts) -> None:
        """Refuse callbacks that do not fit this run."""
        faults: list[str] = []
        for name, callback in self._named.items():
            with told_as(CallbackError, f"callback {name} failed in check"):
                faults += callback.check(run)
        if faults:
            raise InputError(*faults)

    def start(self, run: RunFacts, states: Mapping[str, Packed]) -> None:
        """Start after round `run.round`, with the states from the checkpoint of that round."""
        for name, callback in self._named.items():
            with told_as(CallbackError, f"callback {name} failed in on_start"):
                callback.on_start(run)
            if name in states and callback.state is not None:
                callback.state = unpack(states[name], type(callback.state))
        self._reported = run.round
        self._states = {run.round: self._packed()}

    def missing(self, states: Mapping[str, Packed]) -> list[str]:
        """Return the names of callbacks that have a state in the checkpoint but are not given now."""
        return [name for name in states if name not in self._named]

    def report(self, record: "RoundRecord") -> str | None:
        """Report a round, unless it was reported before; return why the run should end, None if it should continue."""
        if record.number <= self._reported:
            return None
        reasons = []
        for name, callback in self._named.items():
            with told_as(CallbackError, f"callback {name} failed after round {record.number}"):
                verdict = callback.on_round_end(record)
                if verdict is not None and bool(verdict):
                    reasons.append(verdict if isinstance(verdict, str) else f"callback {name} ended it")
        self._reported = record.number
        self._states[record.number] = self._packed()
        return "; ".join(reasons) or None

    def models_to_save(self, number: int) -> ModelsToSave:
        """Return which models to save after this round: the largest set that any callback asks for."""
        wanted: set[str] = set()
        for name, callback in self._named.items():
            with told_as(CallbackError, f"callback {name} failed in models_to_save"):
                wanted.add(callback.models_to_save(number))
        return "all" if "all" in wanted else "shared" if "shared" in wanted else "none"

    def states_after(self, number: int) -> dict[str, Packed]:
        """Return the states after a round, which must not be before the last checkpoint."""
        return self._states[number]

    def forget_before(self, number: int) -> None:
        """Drop the states of earlier rounds: there is a checkpoint of this round."""
        self._states = {n: states for n, states in self._states.items() if n >= number}

    def end(self, run: "Run") -> None:
        """Tell all callbacks that the run is complete."""
        for name, callback in self._named.items():
            with told_as(CallbackError, f"the run in {run.path} is complete, but callback {name} failed in on_end"):
                callback.on_end(run)

    def _packed(self) -> dict[str, Packed]:
        states = {}
        for number, (name, callback) in enumerate(self._named.items()):
            if callback.state is not None:
                tree, arrays = pack(callback.state, f"callbacks.{number}")
                states[name] = (tree, {key: np.array(array) for key, array in arrays.items()})
        return states


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Give each callback a name that is the same in a resumed run: its class, with a number if there are several."""
    known = {cls: name for name, cls in built_in().items()}
    named: dict[str, Callback] = {}
    for callback in callbacks:
        cls = type(callback)
        stem = name = known.get(cls, f"{cls.__module__}:{cls.__qualname__}")
        number = 1
        while name in named:
            number += 1
            name = f"{stem} {number}"
        named[name] = callback
    return named
