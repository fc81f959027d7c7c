"""Write the import graph by package into CONTRIBUTING.md, between its two markers: `make graph`.

An arrow leads from a package to one that it imports. Arrows that follow from others are left out, and so are imports
for type checking alone.
"""

import sys
from pathlib import Path

import grimp

BEGIN, END = "<!-- import graph: begin, written by `make graph` -->", "<!-- import graph: end -->"
FILE = Path(__file__).parents[1] / "CONTRIBUTING.md"
Graph = dict[str, set[str]]


def imports_by_package() -> Graph:
    """Return which packages each package of rayfl imports; a module right under rayfl counts as one."""
    graph = grimp.build_graph("rayfl", exclude_type_checking_imports=True, cache_dir=None)
    found: Graph = {child.partition(".")[2]: set() for child in graph.find_children("rayfl")}
    for module in graph.modules - {"rayfl"}:
        package = module.split(".")[1]
        others = {other.split(".")[1] for other in graph.find_modules_directly_imported_by(module) if other != "rayfl"}
        found[package] |= others - {package}
    return found


def reduced(graph: Graph) -> Graph:
    """Leave out arrows that follow from others; the graph must have no circles.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    True
    """
    below: Graph = {}

    def reach(name: str, way: tuple[str, ...] = ()) -> set[str]:
        if name in way:
            raise ValueError(f"packages import each other in a circle: {' > '.join([*way, name])}")
        if name not in below:
            below[name] = graph[name].union(*[reach(other, (*way, name)) for other in graph[name]])
        return below[name]

    for name in graph:
        reach(name)
    return {
        name: {other for other in others if not any(other in below[third] for third in others)}
        for name, others in graph.items()
    }


def mermaid(graph: Graph) -> str:
    """Return the graph as GitHub draws it."""
    lines = [f"    {name} --> {other}" for name in sorted(graph) for other in sorted(graph[name])]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def with_graph(text: str) -> str:
    """Return the page with the graph of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{mermaid(reduced(imports_by_package()))}\n{END}{after}"


if __name__ == "__main__":
    sys.path.insert(0, str(FILE.parent))
    FILE.write_text(with_graph(FILE.read_text(encoding="utf-8")), encoding="utf-8")
