"""How the learning rate changes from round to round: a factor for each round, counted from 1.

`local.schedule` names one of `SCHEDULES` or your own function, which takes the round and `local.schedule_options`.
"""

import inspect
import math
from collections.abc import Callable

from rayfl.config import LocalConfig
from rayfl.errors import InputError, closest, shown
from rayfl.own_code import import_module_of, reason


def constant(round: int) -> float:
    """Return 1.

    >>> constant(7)
    1.0
    """
    return 1.0


def exponential(round: int, factor: float = 1.0) -> float:
    """Multiply by `factor` every round; the default of `factor` is local.lr_decay.

    >>> exponential(3, 0.5)
    0.25
    """
    return factor ** (round - 1)


def cosine(round: int, over: int, least: float = 0.0) -> float:
    """Go from 1 to `least` along half a cosine, in `over` rounds (default: all of the run's), and stay there.

    >>> [round(cosine(r, over=4), 3) for r in (1, 3, 5, 9)]
    [1.0, 0.5, 0.0, 0.0]
    """
    way = min(round - 1, over) / over
    return least + (1 - least) * (1 + math.cos(math.pi * way)) / 2


def step(round: int, every: int = 30, factor: float = 0.1) -> float:
    """Multiply by `factor` after every `every` rounds.

    >>> [step(r, every=2, factor=0.5) for r in (1, 2, 3, 5)]
    [1.0, 1.0, 0.5, 0.25]
    """
    return factor ** ((round - 1) // every)


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "exponential": exponential,
    "cosine": cosine,
    "step": step,
}


def settled_schedule(local: LocalConfig, rounds: int) -> LocalConfig:
    """Return the config with those options of its schedule filled in that depend on the run, so that they are saved.

    A cosine over all rounds must not change when the run is resumed with more rounds.
    """
    if local.schedule == "cosine" and "over" not in local.schedule_options:
        return local.model_copy(update={"schedule_options": {**local.schedule_options, "over": rounds}})
    return local


def learning_rate(local: LocalConfig, round: int) -> float:
    """Return the learning rate of a round."""
    factor = _schedule(local)(round, **_options(local))
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor < math.inf:
        raise InputError(
            f"local.schedule={local.schedule} gives {shown(factor)} in round {round}: it must be a number of at least 0"
        )
    return local.lr * factor


def check_schedule(local: LocalConfig) -> None:
    """Refuse a schedule that does not exist, or options that it does not take."""
    schedule = _schedule(local)
    known = list(inspect.signature(schedule).parameters)[1:]
    for option, value in local.schedule_options.items():
        if option not in known:
            raise InputError(
                f"local.schedule_options.{option}={shown(value)} is not used by local.schedule={local.schedule}:"
                + (f" its options are {', '.join(known)}" if known else " remove it")
            )
        if isinstance(value, int | float) and not value > 0 and option in ("over", "every"):
            raise InputError(f"local.schedule_options.{option}={shown(value)} must be above 0")
    try:
        learning_rate(local, 1)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"local.schedule={local.schedule} with {shown(local.schedule_options)}: {reason(error)}"
        ) from None


def _options(local: LocalConfig) -> dict:
    options = dict(local.schedule_options)
    if local.schedule == "exponential":
        options.setdefault("factor", local.lr_decay)
    return options


def _schedule(local: LocalConfig) -> Callable[..., float]:
    name = local.schedule
    if ":" in name:
        module, attribute = import_module_of("local.schedule", name)
        found = getattr(module, attribute, None)
        if not callable(found):
            raise InputError(f"local.schedule={name} is not a function of the round")
        return found
    if name not in SCHEDULES:
        raise InputError(
            f"local.schedule={shown(name)} is not allowed{closest(name, list(SCHEDULES))}; allowed:"
            f" {', '.join(SCHEDULES)}, or package.module:function"
        )
    return SCHEDULES[name]
