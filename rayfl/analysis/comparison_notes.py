"""The notes below a comparison: which runs were left out or could not be paired, and whether there are enough seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayfl.analysis.measures import Measured
from rayfl.analysis.statistics import can_tell, smallest_p
from rayfl.analysis.table_labels import natural_order
from rayfl.config import Config, dotted_keys

if TYPE_CHECKING:
    from rayfl.results import Run

_Cell = Mapping[tuple[int, int], Measured]
_Cells = Mapping[tuple[str, str], _Cell]
_WORDS = {"data": "other data", "partition": "another partition", "model": "another initial model"}
#: Keys that may explain why two runs did not have the same start.
_CAUSES = ("data.", "partition.", "model.", "task")
_NO_CAUSES = ("data.root", "partition.seed")


def run_notes(runs: "Sequence[Run]", partial: bool, notes: list[str]) -> "list[Run]":
    """Return the runs to compare, and note those that have not finished or were ended early."""
    used = []
    for run in runs:
        done, asked = len(run.rounds), run.config.rounds
        if run.finished:
            used.append(run)
            if (stopped := run.stopped_early) is not None:
                notes.append(f"{run.path} was ended by a callback after round {stopped.round} of {stopped.rounds}")
        elif partial and done:
            used.append(run)
            notes.append(f"not finished: {run.path} has {done} of {asked} rounds, and is compared by these")
        else:
            notes.append(f"left out: {run.path} has not finished ({done} of {asked} rounds)")
    return used


def seed_notes(cells: _Cells) -> list[str]:
    """Return a note for each setting whose methods have different seeds."""
    notes = []
    for setting, methods in _by_setting(cells).items():
        seeds = {method: tuple(sorted(cell)) for method, cell in methods.items()}
        if len(set(seeds.values())) > 1:
            words = "; ".join(f"{method}: {_seeds(found)}" for method, found in seeds.items())
            notes.append(f"{setting}: means are over different seeds ({words})")
    return notes


def test_notes(pairs: Mapping[str, int]) -> list[str]:
    """Return notes on too few pairs for a test; `pairs` counts the runs that are paired with the best, by setting."""
    notes = []
    for n in sorted({n for n in pairs.values() if not can_tell(n)}):
        where = [setting for setting, found in pairs.items() if found == n]
        prefix = "" if len(where) == len(pairs) else f"{'; '.join(where)}: "
        some = "1 paired seed" if n == 1 else f"{n} paired seeds"
        reason = f"the smallest p-value that {'1 pair' if n == 1 else f'{n} pairs'} can give is {smallest_p(n):g}"
        what = f"{some} cannot support a test at 5 %: {reason}" if n else "no runs are paired, so there is no test"
        notes.append(
            f"{prefix}{what}; with 6 or more paired seeds, methods that are not significantly worse than the best are"
            " marked"
        )
    return notes


def began_alike(run: "Run", other: "Run") -> bool:
    """Whether two runs with the same seeds had the same data, partition and initial model.

    This is decided by the fingerprints; for runs of older versions without fingerprints, by the configs.
    """
    if run.fingerprints is None or other.fingerprints is None:
        return _start_keys(run.config) == _start_keys(other.config)
    return run.fingerprints == other.fingerprints


def pairing_notes(cells: _Cells, baseline: str | None) -> list[str]:
    """Return notes about runs with the same seed that did not have the same data, partition and initial model."""
    found: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    unknown: list[str] = []
    for setting, methods in _by_setting(cells).items():
        for seeds in sorted({seeds for cell in methods.values() for seeds in cell}):
            here = {method: cell[seeds].run for method, cell in methods.items() if seeds in cell}
            unknown += [run.path for run in here.values() if run.fingerprints is None and len(here) > 1]
            reference = baseline if baseline in here else _most_common(here)
            for method, run in here.items():
                if not began_alike(run, here[reference]):
                    found[setting, method, f"{_difference(run, here[reference])} than {reference}"].append(seeds)
    notes = [
        f"{setting}: {method} had {what} with {_seeds(seeds)}, so these runs are not paired"
        for (setting, method, what), seeds in found.items()
    ]
    if unknown:
        names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        notes.append(
            f"no fingerprints were recorded in {names}: whether they had the same data, partition and initial model as"
            " others with their seed is judged by their configs"
        )
    return notes


def _difference(run: "Run", other: "Run") -> str:
    """Return a text that says how the starts of two runs differ, and which config keys may be the reason."""
    ours, theirs = run.fingerprints, other.fingerprints
    known = ours is not None and theirs is not None
    words = [_WORDS[name] for name in ours.differing(theirs)] if known else ["another start"]  # type: ignore[union-attr, arg-type]
    mine, yours = _start_keys(run.config), _start_keys(other.config)
    keys = [key for key in dict.fromkeys([*mine, *yours]) if mine.get(key) != yours.get(key)]
    reason = ", ".join(f"{key}={mine.get(key, 'none')} instead of {yours.get(key, 'none')}" for key in keys[:3])
    return " and ".join(words) + (f" ({reason})" if reason else "")


def _start_keys(config: Config) -> dict[str, Any]:
    """Return the keys that determine data, partition and initial model, except the seeds."""
    keys = dotted_keys(config.to_tree())
    return {key: value for key, value in keys.items() if key.startswith(_CAUSES) and key not in _NO_CAUSES}


def _most_common(here: "Mapping[str, Run]") -> str:
    """Return the method whose start is shared by most of the others; the first one at a tie."""
    names = sorted(here, key=natural_order)
    return max(names, key=lambda name: sum(began_alike(here[name], other) for other in here.values()))


def _by_setting(cells: _Cells) -> dict[str, dict[str, _Cell]]:
    found: dict[str, dict[str, _Cell]] = defaultdict(dict)
    for setting, method in sorted(cells, key=lambda key: (natural_order(key[0]), natural_order(key[1]))):
        found[setting][method] = cells[setting, method]
    return found


def _seeds(found: Sequence[tuple[int, int]]) -> str:
    words = [str(seed) if seed == dealt else f"{seed} (partition {dealt})" for seed, dealt in found]
    return f"seed {words[0]}" if len(words) == 1 else f"seeds {', '.join(words)}"
