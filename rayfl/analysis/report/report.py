"""Creates the report: which sections there are, in which order, and how many runs fit into the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.analysis.report.blocks import Block, Chart, Paragraph, PerRun, Row, Section
from rayfl.analysis.report.page import Page
from rayfl.analysis.report.sections import clusters, overview, similarity, tuning
from rayfl.analysis.report.sections.clients import clients_section
from rayfl.analysis.report.sections.costs import cost_section
from rayfl.analysis.report.sections.drift import drift_section
from rayfl.analysis.report.sections.performance import curve_section, paired_section, sensitivity_section
from rayfl.analysis.report.sections.runs import recovery_section, runs_section
from rayfl.analysis.report.sections.table import table_section
from rayfl.analysis.report.study import Study, make_study
from rayfl.analysis.report.text import script_json
from rayfl.analysis.report.wording import count, listed
from rayfl.errors import InputError

if TYPE_CHECKING:
    from rayfl.results import Run

#: Maximum bytes of all charts of single runs together; further runs are left out, and the page says so.
BUDGET = 3_000_000


@dataclass(frozen=True)
class Topic:
    """A section that shows one run at a time."""

    name: str
    title: str
    lead: str
    make: Callable[[Study, int], Sequence[Block]]
    missing: str  # why a page may lack it


def check_report_file(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a report is a web page; give it a name that ends in .html")
    if not path.parent.is_dir():
        raise InputError(f"-o {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise InputError(f"-o {path} is a folder: name a file in it")


def write_report(
    runs: "Sequence[Run]",
    path: str | Path,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
) -> Path:
    """Write one self-contained page about the runs; return its path.

    `metric` is a column of `rounds`, by default the task's first metric. `baseline` is the label with which others are
    compared, by default fedavg if there is one. With `target`, the page shows the cost to reach this value.
    """
    path = Path(path)
    check_report_file(path)
    text = report_html(make_study(runs, metric, baseline, target))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"-o {path} cannot be written: {error.strerror or error}; name another file") from None
    return path


def report_html(study: Study) -> str:
    """Return the page."""
    details, left_out = _details(study)
    sections = [
        table_section(study),
        overview.compared(study),
        curve_section(study),
        paired_section(study),
        sensitivity_section(study),
        clients_section(study),
        cost_section(study),
        clusters.over_rounds(study),
        drift_section(study),
        *details,
        recovery_section(study),
        runs_section(study, left_out),
    ]
    page = Page(overview.title(study), study.run_names)
    return page.html(
        overview.answers(study), overview.facts(study), [section for section in sections if section is not None]
    )


def _topics() -> list[Topic]:
    dealt: dict[str, Any] = {}  # one partition serves all runs that share it
    return [
        Topic(
            "one-run",
            "Clusters of one run",
            "",
            lambda study, number: [
                *clusters.sizes(study, number),
                *clusters.against_truth(study, number),
                *clusters.movement(study, number),
            ],
            "",
        ),
        Topic(
            "similarity",
            "Similarity between clients",
            "",
            similarity.matrix,
            "Similarity between clients is not shown: no run recorded it. FedAC does with"
            " method.report_similarity=true, FedTSDP with method.report_divergence=true.",
        ),
        Topic(
            "labels",
            "Who has which classes",
            "Training samples, found by repeating the run's partition of the data.",
            lambda study, number: similarity.labels_of_clients(study, number, dealt),
            "Which classes clients have is not shown: the data are not on this machine, have no classes, or come from"
            " code that the run names, and a report runs no such code.",
        ),
        Topic(
            "decisions",
            "How the number of clusters was decided",
            "",
            tuning.decisions,
            "",
        ),
    ]


def _details(study: Study) -> tuple[list[Section], list[str]]:
    """Return the sections that show one run at a time, and sentences about what is not on the page."""
    topics = _topics()
    variants: dict[str, dict[int, Sequence[Block]]] = {topic.name: {} for topic in topics}
    shown: list[int] = []
    too_many: list[int] = []
    spent = 0
    for number in study.detailed:
        if not len(study.runs[number].rounds):
            continue
        made = {topic.name: topic.make(study, number) for topic in topics}
        spent += sum(_size(block) for blocks in made.values() for block in blocks)
        if spent > BUDGET and shown:
            too_many.append(number)
            continue
        shown.append(number)
        for name, blocks in made.items():
            if blocks:
                variants[name][number] = blocks
    sections, left_out = [], []
    which = _which(study, shown, too_many)
    for topic in topics:
        if variants[topic.name]:
            lead = f"{topic.lead} {which}".strip()
            sections.append(Section(topic.name, topic.title, [PerRun(variants[topic.name])], lead))
        elif topic.missing:
            left_out.append(topic.missing)
    return sections, left_out


def _which(study: Study, shown: Sequence[int], too_many: Sequence[int]) -> str:
    """Return a sentence about which runs can be selected."""
    if len(study.runs) == 1:
        return ""
    text = ""
    if len(study.detailed) < len(study.runs):
        text += f" Of {count(len(study.runs), 'run')}, the first seed of each configuration is here."
    if too_many:
        names = [study.run_names[number] for number in too_many]
        text += f" Left out to keep the page small: {listed(names, 3)}."
    return text.strip()


def _size(block: Block) -> int:
    """Return how many bytes a block adds to the page."""
    if isinstance(block, Chart):
        return len(script_json(block.figure))
    if isinstance(block, Row):
        return sum(map(_size, block.charts))
    return len(block.text) if isinstance(block, Paragraph) else 1000
