"""Turns sections into one self-contained HTML page: styles, scripts and data are inside it.

Every string is escaped here. In addition, the page's content security policy forbids it to load anything and to run any
script except its own two.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from rayfl.analysis.report.blocks import (
    Block,
    Cell,
    Chart,
    Commands,
    DataTable,
    Figure,
    Folded,
    Paragraph,
    PerRun,
    Row,
    Section,
)
from rayfl.analysis.report.text import cut, escaped, script_json
from rayfl.version import __version__


class Page:
    """Collects the figures of the sections while their HTML is made."""

    def __init__(self, title: str, run_names: Mapping[int, str]) -> None:
        self._title = title
        self._run_names = run_names
        self._figures: dict[str, Figure] = {}
        self._lists = 0

    def html(self, answers: Sequence[Paragraph], facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
        """Return the whole page."""
        body = "\n".join(self._section(section) for section in sections)
        contents = "".join(f'<li><a href="#{escaped(s.name)}">{escaped(s.title)}</a></li>' for s in sections)
        library, script = _library(), _asset("report.js")
        return _filled(
            _asset("page.html"),
            {
                "title": escaped(cut(self._title)),
                "generator": f"rayfl {__version__}",
                "policy": _policy(library, script),
                "style": _asset("report.css"),
                "header": "\n".join(_paragraph(answer) for answer in answers) + _facts(facts),
                "contents": contents,
                "sections": body,
                "footer": f"Made by rayfl {__version__} from the tables in the run folders. Charts: plotly.js.",
                "data": script_json(self._figures),
                "library": library,
                "script": script,
            },
        )

    def _section(self, section: Section) -> str:
        lead = f'<p class="lead">{escaped(section.lead)}</p>' if section.lead else ""
        blocks = "\n".join(self._block(block) for block in section.blocks)
        return f'<section id="{escaped(section.name)}"><h2>{escaped(section.title)}</h2>{lead}\n{blocks}</section>'

    def _block(self, block: Block) -> str:
        match block:
            case Paragraph():
                return _paragraph(block)
            case Chart():
                return self._chart(block)
            case Row():
                return f'<div class="row">{"".join(self._chart(chart) for chart in block.charts)}</div>'
            case DataTable():
                return _table(block)
            case Commands():
                return f"<pre>{escaped_lines(block.lines)}</pre>"
            case Folded():
                inside = "".join(self._block(inner) for inner in block.blocks)
                return f'<details class="more"><summary>{escaped(block.summary)}</summary>{inside}</details>'
            case PerRun():
                return self._per_run(block)

    def _chart(self, chart: Chart) -> str:
        if chart.name in self._figures:
            raise ValueError(f"two charts are called {chart.name}")
        layout = {**chart.figure["layout"], "height": chart.height}
        self._figures[chart.name] = {**chart.figure, "layout": layout}
        name = escaped(chart.name)
        caption = f"<figcaption>{escaped(chart.caption)}</figcaption>" if chart.caption else ""
        return (
            f'<figure class="chart"><h3>{escaped(chart.title)}</h3><div class="plot" id="plot-{name}"'
            f' data-chart="{name}" style="min-height:{chart.height}px" role="img" aria-label="{escaped(chart.title)}">'
            f"</div>{caption}</figure>"
        )

    def _per_run(self, block: PerRun) -> str:
        first = next(iter(block.variants), None)
        variants = "".join(
            f'<div class="variant" data-run="{run}"{"" if run == first else " hidden"}>'
            + "".join(self._block(inner) for inner in blocks)
            + "</div>"
            for run, blocks in block.variants.items()
        )
        if len(block.variants) == 1 and len(self._run_names) == 1:
            return f"<div>{variants}</div>"
        self._lists += 1
        name = f"run-{self._lists}"
        options = "".join(
            f'<option value="{run}">{escaped(cut(self._run_names[run]))}</option>' for run in block.variants
        )
        choice = f'<label for="{name}">Run</label><select class="run" id="{name}" autocomplete="off">{options}</select>'
        return f'<div><div class="choose">{choice}</div>{variants}</div>'


def escaped_lines(lines: Sequence[str]) -> str:
    """Return the lines, each escaped, with their line breaks."""
    return "\n".join(escaped(line) for line in lines)


def _paragraph(block: Paragraph) -> str:
    return f'<p class="{escaped(block.kind)}">{escaped(block.text)}</p>'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{inside}</dl>' if facts else ""


def _table(table: DataTable) -> str:
    def kind(number: int) -> str:
        return ' class="number"' if number in table.numeric else ""

    head = "".join(
        f'<th scope="col"{kind(n)}{_hint(table.hints.get(n, ""))}>{escaped(name)}</th>'
        for n, name in enumerate(table.columns)
    )
    rows = "".join(
        "<tr>" + "".join(_cell(cell, n in table.numeric) for n, cell in enumerate(row)) + "</tr>" for row in table.rows
    )
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    name = f' id="table-{escaped(table.name)}"' if table.name else ""
    return (
        f'<div class="scroll"><table{name}>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(cell: Cell | str, numeric: bool) -> str:
    if isinstance(cell, str):
        cell = Cell(cell)
    classes = " ".join(name for name, on in (("number", numeric), ("best", cell.best)) if on)
    attribute = f' class="{classes}"' if classes else ""
    swatch = "" if cell.colour is None else f'<span class="swatch" style="background:{escaped(cell.colour)}"></span>'
    mark = f' <span class="mark">{escaped(cell.mark)}</span>' if cell.mark else ""
    return f"<td{attribute}{_hint(cell.hint)}>{swatch}{escaped(cell.text)}{mark}</td>"


def _hint(text: str) -> str:
    return f' title="{escaped(text)}"' if text else ""


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Fill in all placeholders in one pass: a value that looks like a placeholder is not replaced again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _policy(*scripts: str) -> str:
    def digest(script: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"

    allowed = " ".join(digest(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (files("rayfl.analysis.report") / "assets" / name).read_text(encoding="utf-8")


def _library() -> str:
    """Return the plotly.js that comes with the Python package plotly, whose slow figure classes are not used."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError("this version of plotly.js cannot be embedded in a page: install another version of plotly")
    return script
