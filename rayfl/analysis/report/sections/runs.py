"""The runs one by one: their progress, their recoveries from failures, and the command that repeats each run."""

import shlex

from rayfl.analysis.report.blocks import Block, Commands, DataTable, Paragraph, Section
from rayfl.analysis.report.study import Study, folder
from rayfl.analysis.report.text import cut
from rayfl.analysis.report.wording import count, metric_name, number
from rayfl.analysis.views.costs import recoveries
from rayfl.uris import without_secrets

#: Maximum of recoveries in the list; a run on failing hardware may have thousands.
_MOST_NOTES = 100


def recovery_section(study: Study) -> Section | None:
    """Return the failures from which runs recovered; None if there were none."""
    rows: list[list[str]] = []
    total = 0
    for run_number, run in enumerate(study.runs):
        found = recoveries(run)
        total += len(found)
        for note in found.itertuples():
            if len(rows) < _MOST_NOTES:
                rows.append([study.run_names[run_number], str(note.round), cut(str(note.note), 300)])
    if not rows:
        return None
    blocks: list[Block] = [DataTable(["run", "round", "what happened"], rows, frozenset({1}), name="recoveries")]
    if total > len(rows):
        blocks.append(Paragraph(f"{total - len(rows):,} more are in the column extras of the table rounds.", "note"))
    lead = f"{count(total, 'failure')} on the way. The runs went back to their checkpoints; the numbers do not change."
    return Section("recoveries", "Recoveries", blocks, lead)


def runs_section(study: Study, left_out: list[str]) -> Section:
    """Return the list of runs, the commands that repeat them, and what this page does not show."""
    values = study.final.set_index("run")["value"]
    rows = []
    for run_number, run in enumerate(study.runs):
        stopped = run.stopped_early
        state = "stopped early" if stopped is not None else "finished" if run.finished else "not finished"
        value = number(values.get(run_number))
        done = f"{len(run.rounds)} of {run.config.rounds}"
        rows.append([study.names[run_number], str(run.config.seed), state, done, value, cut(folder(run))])
    columns = ["configuration", "seed", "state", "rounds", metric_name(study.metric), "folder"]
    blocks: list[Block] = [
        DataTable(columns, rows, frozenset({1, 3, 4}), name="runs"),
        Paragraph("To repeat a run, on one kind of CPU to the same bits:"),
        Commands([command(study, run_number) for run_number in range(len(study.runs))]),
    ]
    blocks += [Paragraph(text, "note") for text in left_out]
    return Section("runs", "Runs, and how to repeat them", blocks)


def command(study: Study, run_number: int) -> str:
    """Return the shell command that repeats a run, with another name if the run had a name."""
    run = study.runs[run_number]
    path = without_secrets(run.path).rstrip("/")
    name = run.config.name
    again = "" if name is None else " " + shlex.quote(f"name={name}-again")
    return f"rayfl run {shlex.quote(f'{path}/config.yaml')}{again}"
