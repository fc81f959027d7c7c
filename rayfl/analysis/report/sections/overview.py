"""The top of the page: the answer in a sentence or two, the size of the study, what was compared and what differed."""

from collections.abc import Mapping
from typing import Any

from rayfl.analysis.labels import NOT_COMPARED
from rayfl.analysis.report.blocks import Block, Cell, DataTable, Folded, Paragraph, Section
from rayfl.analysis.report.study import Study
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import NOTHING, count, listed, metric_name, number, plus_minus
from rayfl.analysis.views.performance import paired_differences

#: Settings with more answers than this are left to the table.
_MOST_ANSWERS = 3


def title(study: Study) -> str:
    """Return what the page is about, in a line."""
    methods = list(dict.fromkeys(label.method for label in study.labels))
    sources = list(dict.fromkeys(str(run.config.data.source) for run in study.runs))
    return f"{listed(methods, 4)} on {listed(sources, 3)}"


def answers(study: Study) -> list[Paragraph]:
    """Return the best method of each setting, by how much, and over how many seeds."""
    final = study.final
    if final.empty:
        return [Paragraph("No run has been evaluated yet, so there is no result to show.", "answer")]
    name = metric_name(study.metric)
    told = []
    for setting, best in list(study.best.items())[:_MOST_ANSWERS]:
        here = final[final["setting"] == setting]
        values = here[here["label"] == best]["value"]
        shown = f"{name} {plus_minus(values.mean(), values.std())} ({count(len(values), 'seed')})"
        method = here[here["label"] == best]["method"].iloc[0]
        place = f"With {setting}: " if setting else ""
        if here["label"].nunique() == 1:
            told.append(f"{place}{method} reaches {shown}.")
        else:
            worst = "lowest" if study.lower else "best"
            told.append(f"{place}{method} has the {worst} {name}: {_after_colon(shown, name)}.{_lead(study, setting)}")
    if len(study.best) > _MOST_ANSWERS:
        told.append(f"There are {len(study.best)} settings in all: see the table.")
    paragraphs = [Paragraph(text, "answer") for text in told]
    unfinished = [run for run in study.runs if not run.finished]
    if unfinished:
        are = "is" if len(unfinished) == 1 else "are"
        text = f"{len(unfinished)} of {count(len(study.runs), 'run')} {are} not finished: the numbers may change."
        paragraphs.append(Paragraph(text, "warning"))
    return paragraphs


def _after_colon(shown: str, name: str) -> str:
    return shown.removeprefix(f"{name} ")


def _lead(study: Study, setting: str) -> str:
    """Say how far the best is from the baseline, seed by seed; or from the second, if it is the baseline itself."""
    best, baseline = study.best[setting], study.baseline_in(setting)
    if baseline is None:
        return ""
    if best == baseline:
        means = study.final[study.final["setting"] == setting].groupby("label")["value"].mean()
        second = means.drop(best).sort_values(ascending=study.lower)
        gap = means[best] - second.iloc[0]
        return f" It is {_above(gap)} {_method(study, str(second.index[0]))}, the next best."
    pairs = paired_differences(study.runs, baseline, study.metric)
    differences = pairs[pairs["label"] == best]["difference"]
    if differences.empty:
        return ""
    wins = int((differences < 0).sum() if study.lower else (differences > 0).sum())
    of = count(len(differences), "seed")
    each = f"better in all {of}" if wins == len(differences) > 1 else f"better in {wins} of {of}"
    return f" It is {_above(differences.mean())} {_method(study, baseline)} ({each})."


def _above(gap: float) -> str:
    return f"{number(abs(gap))} {'above' if gap >= 0 else 'below'}"


def _method(study: Study, label: str) -> str:
    return study.labels[study.names.index(label)].method


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
    differing = [key for key in keys if key not in common and not _set_aside(key)]
    blocks: list[Block] = []
    if len(study.distinct) > 1:
        rows = []
        for name in study.distinct:
            members = [number for number, other in enumerate(study.names) if other == name]
            values = [_joined([trees[number].get(key) for number in members]) for key in differing]
            seeds = [study.runs[number].config.seed for number in members]
            rows.append([Cell(cut(name), colour=study.looks[name].colour), *values, _seeds(seeds)])
        columns = ["configuration", *differing, "seeds"]
        blocks.append(DataTable(columns, rows, name="differences"))
    settled = [(key, _shown(value)) for key, value in common.items() if not _set_aside(key)]
    table = DataTable(["setting", "value"], settled, name="common")
    summary = f"{count(len(settled), 'setting')} that all runs share" if len(study.runs) > 1 else "All settings"
    blocks.append(Folded(summary, [table]))
    if len(study.runs) == 1:
        lead = f"One run: {study.names[0]}, seed {study.runs[0].config.seed}."
    elif len(study.distinct) == 1:
        lead = f"{count(len(study.runs), 'run')} of {study.names[0]}, which differ in nothing but the seed."
    else:
        lead = f"{count(len(study.distinct), 'configuration')}. A dash means that the key is not there or not set."
    return Section("compared", "What was compared", blocks, lead)


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
    """Whether a key says nothing about the experiment: where it ran, its name, its seed."""
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
