"""What all figures share: axes, the preset for papers, colours, what is refused, and their page in the docs."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from small_runs import SmallRuns

from rayfl.analysis import figures, views
from rayfl.errors import InputError
from rayfl.results import Run

mpl.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


# -- what all figures share -------------------------------------------------------------------------------------------


def every_figure(runs: SmallRuns) -> dict[str, Callable[[Axes | None], Axes]]:
    some = [*runs.fedavg, *runs.ifca]
    return {
        "curves": lambda ax: figures.curves(some, ax=ax),
        "final": lambda ax: figures.final(some, ax=ax),
        "addon_effect": lambda ax: figures.addon_effect(some, ax=ax),
        "paired_differences": lambda ax: figures.paired_differences(some, "fedavg", ax=ax),
        "sensitivity": lambda ax: figures.sensitivity(runs.ifca, "method.clusters", ax=ax),
        "client_distribution": lambda ax: figures.client_distribution(some, ax=ax),
        "worst_clients": lambda ax: figures.worst_clients(some, ax=ax),
        "cluster_sizes": lambda ax: figures.cluster_sizes(runs.fedac, ax=ax),
        "cluster_numbers": lambda ax: figures.cluster_numbers([runs.fedac], ax=ax),
        "agreement": lambda ax: figures.agreement(runs.fedac, ax=ax),
        "moves": lambda ax: figures.moves(runs.fedac, ax=ax),
        "flows": lambda ax: figures.flows(runs.fedac, ax=ax),
        "against_truth": lambda ax: figures.against_truth(runs.fedac, ax=ax),
        "paths": lambda ax: figures.paths(runs.fedac, ax=ax),
        "contingency": lambda ax: figures.contingency(runs.fedac, ax=ax),
        "similarity": lambda ax: figures.similarity(runs.fedac, ax=ax),
        "plane": lambda ax: figures.plane(runs.fedac, ax=ax),
        "label_distribution": lambda ax: figures.label_distribution(runs.fedac, ax=ax),
        "label_bars": lambda ax: figures.label_bars(runs.fedac, ax=ax),
        "granularity": lambda ax: figures.granularity(runs.granular, ax=ax),
        "granularity_by_number": lambda ax: figures.granularity_by_number([runs.fixed], ax=ax),
        "tuning": lambda ax: figures.tuning([runs.granular], ax=ax),
        "hopkins": lambda ax: figures.hopkins(runs.fedtsdp, ax=ax),
        "cost": lambda ax: figures.cost(some, ax=ax),
        "time_to_target": lambda ax: figures.time_to_target(some, 0.2, ax=ax),
    }


def test_every_figure_draws_into_the_axes_that_it_is_given(runs: SmallRuns) -> None:
    drawn = every_figure(runs)
    assert set(drawn) | {"PALETTE", "colour", "paper_style", "recoveries"} == set(figures.__all__)
    with figures.paper_style():
        for name, draw in drawn.items():
            figure, ax = plt.subplots()
            assert draw(ax) is ax, name
            assert ax.has_data(), name
            plt.close(figure)


def test_a_pdf_has_its_fonts_embedded(runs: SmallRuns, tmp_path: Path) -> None:
    with figures.paper_style():
        figures.curves(runs.fedavg).figure.savefig(tmp_path / "curves.pdf")
    written = (tmp_path / "curves.pdf").read_bytes()
    assert b"/FontFile2" in written  # TrueType
    assert b"/Type3" not in written


def test_without_axes_each_call_makes_a_figure_of_column_width(runs: SmallRuns) -> None:
    with figures.paper_style():
        one, two = figures.curves(runs.fedavg), figures.curves(runs.fedavg)
    assert one.figure is not two.figure
    assert one.figure.get_size_inches()[0] == 3.3
    assert one.xaxis.label.get_size() == 8


def test_the_preset_leaves_no_trace(runs: SmallRuns) -> None:
    before = dict(mpl.rcParams)
    with figures.paper_style("page"):
        assert mpl.rcParams["figure.figsize"][0] == 6.9
    assert dict(mpl.rcParams) == before


def test_an_unknown_width_is_refused() -> None:
    refused = pytest.raises(InputError, match="width='colum' is not allowed; allowed: column, page, or a number")
    with refused, figures.paper_style("colum"):
        pass


@pytest.mark.parametrize(
    "draw",
    [
        figures.agreement,
        figures.against_truth,
        figures.cluster_sizes,
        figures.contingency,
        figures.flows,
        figures.granularity,
        figures.hopkins,
        figures.moves,
        figures.paths,
        figures.plane,
        figures.recoveries,
        figures.similarity,
    ],
)
def test_a_run_without_what_a_figure_shows_is_refused_and_no_figure_is_left(
    runs: SmallRuns, draw: Callable[[Run], Axes]
) -> None:
    with pytest.raises(InputError, match="there is nothing to draw"):
        draw(runs.local)
    assert not plt.get_fignums()


def test_a_run_that_has_not_begun_is_refused(runs: SmallRuns) -> None:
    with pytest.raises(InputError, match="there is nothing to draw: no run has been evaluated yet"):
        figures.curves([runs.unbegun])


def test_twenty_four_clusters_have_colours_of_their_own() -> None:
    shades = [to_hex(figures.colour(number)) for number in range(24)]
    assert len(set(shades)) == 24
    assert tuple(shades[:8]) == figures.PALETTE


def test_the_palette_is_told_apart_by_readers_who_do_not_see_red_or_green() -> None:
    # Machado et al. (2009), full deuteranopia and protanopia, on linear RGB.
    deutan = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]])
    protan = np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    )
    shades = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in figures.PALETTE])
    linear = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
    for seen in (deutan, protan):
        points = _lab(np.clip(linear @ seen.T, 0, 1))
        apart = np.linalg.norm(points[:, None] - points, axis=2)
        assert apart[~np.eye(len(points), dtype=bool)].min() > 15  # 2.3 is just noticeable


def _lab(linear: np.ndarray) -> np.ndarray:
    """Return CIE L*a*b* coordinates of linear RGB, under daylight (D65)."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = linear @ to_xyz.T / [0.9505, 1.0, 1.089]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


# -- docs/figures.md --------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent / "docs" / "figures.md").read_text()


def test_the_code_of_the_page_runs(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"paths": [run.path for run in (*runs.fedavg, runs.fedac)], "run": runs.fedac}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(block, given)
    assert sorted(file.name for file in tmp_path.glob("*.pdf")) == ["accuracy.pdf", "fedac-figure-2.pdf"]


def test_the_page_names_every_figure_and_only_functions_that_exist() -> None:
    named = set(re.findall(r"[`(]([a-z_]+)\(", PAGE))
    drawn = set(figures.__all__) - {"PALETTE", "colour"}
    assert drawn - named - {"paper_style"} == set()
    assert {name for name in named if name not in figures.__all__} == set()
    for name in re.findall(r"views\.(\w+)", PAGE):
        assert name in views.__all__
