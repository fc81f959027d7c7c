"""The import graph in CONTRIBUTING.md is that of the code."""

import doctest
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def import_graph() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "docs" / "import_graph.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_graph_in_contributing_is_current(import_graph: ModuleType) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert import_graph.with_graph(page) == page, "run `make graph`"
    assert "simulation --> methods" in page and "actors --> simulation" in page


def test_arrows_that_follow_from_others_are_left_out(import_graph: ModuleType) -> None:
    assert doctest.testmod(import_graph).failed == 0
    with pytest.raises(ValueError, match="in a circle: a > b > a"):
        import_graph.reduced({"a": {"b"}, "b": {"a"}})
