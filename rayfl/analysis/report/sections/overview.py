"""The top of the page: the answer in a sentence or two, the size of the study, what was compared and what differed."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from rayfl.analysis.labels import NOT_COMPARED
from rayfl.analysis.report.blocks import Block, Cell, DataTable, Folded, Paragraph, Section
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, count, listed, metric_name, number, plus_minus
from rayfl.analysis.statistics import can_tell

#: Maximum of settings that are answered at the top; for more, see the table.
_MOST_ANSWERS = 3


def title(study: Study) -> str:
    """Return the title of the page."""
    methods = list(dict.fromkeys(label.method for label in study.labels))
    sources = list(dict.fromkeys(str(run.config.data.source) for run in study.runs))
    return f"{listed(methods, 4)} on {listed(sources, 3)}"


def answers(study: Study) -> list[Paragraph]:
    """Return the best method of each setting, by how much, and over how many seeds."""
    comparison = study.comparison
    if comparison is None:
        return [Paragraph("No run has been evaluated yet, so there is no result to show.", "answer")]
    settings = comparison.settings
    told = []
    for setting in settings[:_MOST_ANSWERS]:
        place = f"{setting}: " if len(settings) > 1 else ""
        told.append(f"{place}{_answer(study, comparison.summary[comparison.summary['setting'] == setting])}")
    if len(settings) > _MOST_ANSWERS:
        told.append(f"There are {len(settings)} settings in all: see the table.")
    paragraphs = [Paragraph(text, "answer") for text in told]
    unfinished = [run for run in study.runs if not run.finished]
    if unfinished:
        are = "is" if len(unfinished) == 1 else "are"
        text = f"{len(unfinished)} of {count(len(study.runs), 'run')} {are} not finished: the numbers may change."
        paragraphs.append(Paragraph(text, "warning"))
    return paragraphs


def _answer(study: Study, rows: pd.DataFrame) -> str:
    """Return the best of the rows of one setting, in a sentence or two."""
    name = metric_name(study.metric)
    ranked = rows.sort_values("mean", ascending=study.lower, kind="stable").to_dict("records")
    best = ranked[0]
    value = f"{plus_minus(best['mean'], best['std'])} ({count(int(best['n']), 'seed')})"
    if len(ranked) == 1:
        return f"{best['method']} reaches {name} {value}."
    text = f"{best['method']} has the {'lowest' if study.lower else 'best'} {name}: {value}."
    baseline = study.comparison.baseline if study.comparison is not None else None
    if best["method"] == baseline:
        text += f" Next comes {ranked[1]['method']} with {plus_minus(ranked[1]['mean'], ranked[1]['std'])}."
    elif best["pairs"]:
        side = "above" if best["difference"] >= 0 else "below"
        low, high = sorted((abs(best["low"]), abs(best["high"])))
        interval = f"95 % interval {number(low)} to {number(high)}, "
        one_side = best["low"] * best["high"] > 0
        if not one_side:  # the interval has both signs, or there is none
            interval = "" if math.isnan(best["low"]) else "but the 95 % interval includes zero, "
        pairs = count(int(best["pairs"]), "paired seed")
        text += f" It is {number(abs(best['difference']))} {side} {baseline} ({interval}{pairs})."
    alike = [str(row["method"]) for row in ranked if row["not_worse"]]
    if alike:
        text += f" A paired test does not find {listed(alike, 3)} worse."
    elif not can_tell(int(max(row["pairs_best"] for row in ranked))):
        text += " There are too few paired seeds for a test at 5 %."
    return text


def facts(study: Study) -> list[tuple[str, str]]:
    """Return the size of the study: pairs of a name and a number."""
    clients = [int(run.clients["client"].max()) + 1 for run in study.runs if len(run.clients)]
    rounds = [run.config.rounds for run in study.runs]
    seeds = {run.config.seed for run in study.runs}
    found = [("runs", str(len(study.runs))), ("configurations", str(len(study.distinct))), ("seeds", str(len(seeds)))]
    found.append(("rounds", _span(rounds)))
    if clients:
        found.append(("clients", _span(clients)))
    models = list(dict.fromkeys(run.config.model.name for run in study.runs))
    return [*found, ("model", cut(models[0], 30) if len(models) == 1 else f"{len(models)} models")]


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def compared(study: Study) -> Section:
    """Return what was compared: settings that differ, by label, and those that all runs share."""
    trees = [flat(run.config.to_tree()) for run in study.runs]
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    common = {key: trees[0][key] for key in keys if all(key in t and t[key] == trees[0][key] for t in trees)}
    differing = [key for key in keys if key not in common and not _set_aside(key) and key != "method.name"]
    blocks: list[Block] = []
    if len(study.distinct) > 1:
        members = {name: [trees[n] for n, other in enumerate(study.names) if other == name] for name in study.distinct}
        values = {key: [_joined([tree.get(key) for tree in of]) for of in members.values()] for key in differing}
        shared = [key for key in differing if len({v for v in values[key] if v != NOTHING}) > 1]
        single = [key for key in differing if key not in shared]
        blocks.append(_differences(study, {key: values[key] for key in shared}))
        if single:
            pairs = [(key, _joined([tree.get(key) for tree in trees if key in tree])) for key in single]
            whose = [
                listed([n for n, v in zip(members, values[key], strict=True) if v != NOTHING], 4) for key in single
            ]
            rows = [[key, value, who] for (key, value), who in zip(pairs, whose, strict=True)]
            text = f"{count(len(single), 'option')} that only some methods have"
            blocks.append(Folded(text, [DataTable(["option", "value", "methods"], rows, name="options")]))
    settled = [(key, _shown(value)) for key, value in common.items() if not _set_aside(key)]
    table = DataTable(["setting", "value"], settled, name="common")
    summary = f"{count(len(settled), 'setting')} that all runs share" if len(study.runs) > 1 else "All settings"
    blocks.append(Folded(summary, [table]))
    if len(study.runs) == 1:
        lead = f"One run: {study.names[0]}, seed {study.runs[0].config.seed}."
    elif len(study.distinct) == 1:
        lead = f"{count(len(study.runs), 'run')} of {study.names[0]}, which differ in nothing but the seed."
    else:
        lead = f"{count(len(study.distinct), 'configuration')}, and what differs between them besides the method."
    return Section("compared", "What was compared", blocks, lead)


def _differences(study: Study, values: Mapping[str, list[str]]) -> DataTable:
    """Return what differs: a row per configuration."""
    seeds = [
        _seeds([run.config.seed for run, other in zip(study.runs, study.names, strict=True) if other == name])
        for name in study.distinct
    ]
    rows: list[list[Cell | str]] = [
        [Cell(cut(name), colour=study.looks[name].colour), *[of[place] for of in values.values()], seeds[place]]
        for place, name in enumerate(study.distinct)
    ]
    return DataTable(["configuration", *values, "seeds"], rows, name="differences")


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the tree's leaves by dotted key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def _set_aside(key: str) -> bool:
    """Whether a key is not part of the experiment: where it ran, its name, its seed."""
    return any(key == other or key.startswith(f"{other}.") for other in (*NOT_COMPARED, "method.inherited"))


def _joined(values: list[Any]) -> str:
    texts = list(dict.fromkeys(_shown(value) for value in values))
    return cut(", ".join(texts), 60)


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    return cut(f"{value:g}" if isinstance(value, float) else str(value))


def _seeds(seeds: list[int]) -> str:
    ordered = sorted(set(seeds))
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return cut(", ".join(map(str, ordered)), 60)
