"""Figures of the papers, drawn from the kept runs; docs/figures.md says which function draws which."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from pages.store import Sweep, collected, unpacked
from rayfl.analysis import figures
from rayfl.errors import InputError
from rayfl.results import Run

matplotlib.use("Agg")


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: its title, the runs that it shows, and how."""

    title: str
    runs: Callable[[Run], bool]
    draw: Callable[[list[Run], Axes], object]


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, and the sweep file whose runs it shows."""

    name: str
    sweep: str
    panels: Sequence[Panel]
    columns: int = 4
    height: float = 2.2  # of a row, in inches


def _method(run: Run, name: str, cam: bool | None = None) -> bool:
    addons = run.config.method.options.get("addons", [])
    return run.config.method.name == name and (cam is None or cam == (addons == ["cam"]))


def _seed_0(run: Run) -> bool:
    return run.config.seed == 0


def _sizes(kind: str, name: str, cam: bool) -> Panel:
    return Panel(
        f"{name}{'+cam' if cam else ''}, {kind}",
        lambda run: _seed_0(run) and _method(run, name, cam) and run.config.partition.kind == kind,
        lambda runs, ax: figures.cluster_sizes(runs[0], kind="lines", ax=ax),
    )


def _all(run: Run) -> bool:
    return True


def _tuned(run: Run) -> bool:
    return run.config.method.options.get("tuning") == "granularity"


def _norm(run: Run, norm: str) -> bool:
    return run.config.method.options.get("granularity_norm") == norm


FIGURES = (
    Figure(
        "cam_figures_1_3",
        "cam/figures_1_3",
        [_sizes(k, n, c) for n in ("ifca", "fesem") for k in ("cluster_dirichlet", "dirichlet") for c in (False, True)],
    ),
    Figure(
        "fedac_figure_3",
        "fedac/figure_3",
        [
            Panel(
                "mu",
                lambda run: _options(run, "lam", 0.1) and _options(run, "similarity", "lrcos"),
                lambda runs, ax: figures.sensitivity(runs, "method.mu", ax=ax),
            ),
            Panel(
                "lambda",
                lambda run: _options(run, "mu", 1.0) and _options(run, "similarity", "lrcos"),
                lambda runs, ax: figures.sensitivity(runs, "method.lam", ax=ax),
            ),
            Panel(
                "LrCos and L2",
                lambda run: _options(run, "mu", 1.0) and _options(run, "lam", 0.1),
                lambda runs, ax: figures.curves(runs, ax=ax),
            ),
        ],
    ),
    Figure(
        "fedac_figure_4",
        "fedac/figure_4",
        [
            Panel(
                f"{what}, {norm}",
                lambda run, norm=norm, tuned=tuned: _seed_0(run) and _norm(run, norm) and _tuned(run) == tuned,
                draw,
            )
            for norm in ("l2", "squared")
            for what, tuned, draw in (
                ("G_c, K fixed", False, lambda runs, ax: figures.granularity_by_number(runs, ax=ax)),
                ("K, tuned", True, lambda runs, ax: figures.tuning(runs, ax=ax)),
            )
        ],
        columns=2,
        height=2.8,
    ),
    Figure(
        "fedac_figure_4ab",
        "fedac/figure_4ab",
        [
            Panel(
                name,
                lambda run, name=name: _method(run, name),
                lambda runs, ax: figures.plane(runs[0], by="planted", ax=ax),
            )
            for name in ("fesem", "fedac")
        ],
    ),
    Figure(
        "thesis_figure_3_5",
        "thesis/figure_3_5",
        [
            Panel(
                f"round {number}",
                lambda run: run.config.method.options.get("clusters") == 10,
                lambda runs, ax, number=number: figures.plane(runs[0], number, method="tsne", ax=ax),
            )
            for number in range(1, 5)
        ],
    ),
    Figure("thesis_figure_7_5", "thesis/figure_7_5", [Panel("", _all, lambda runs, ax: figures.paths(runs[0], ax=ax))]),
    Figure(
        "thesis_figure_7_7",
        "thesis/figure_7_7",
        [
            Panel(
                f"ifca{'+cam' if cam else ''}",
                lambda run, cam=cam: _seed_0(run) and _method(run, "ifca", cam),
                lambda runs, ax: figures.against_truth(runs[0], ax=ax),
            )
            for cam in (False, True)
        ],
    ),
    Figure("fedtsdp_figure_9", "fedtsdp/figure_9", [Panel("", _all, lambda runs, ax: figures.curves(runs, ax=ax))]),
    *(
        Figure(
            f"fedtsdp_figure_{n}",
            f"fedtsdp/figure_{n}",
            [Panel("", _seed_0, lambda runs, ax: figures.hopkins(runs[0], ax=ax))],
        )
        for n in (10, 11)
    ),
)


def _options(run: Run, key: str, value: object) -> bool:
    return run.config.method.options.get(key) == value


def draw_all(results: Path, target: Path) -> list[str]:
    """Draw every figure that there are runs for, and return the names of the files."""
    target.mkdir(exist_ok=True)
    kept = collected(results)
    return [draw(figure, sweep, results, target) for figure, sweep in drawn(kept)]


def drawn(kept: Sequence[Sweep]) -> list[tuple[Figure, Sweep]]:
    """Return the figures that can be drawn, once for each set."""
    return [(figure, sweep) for figure in FIGURES for sweep in kept if sweep.name == figure.sweep]


def name_of(figure: Figure, sweep: Sweep) -> str:
    """Return the name of a figure's file."""
    return "-".join(filter(None, [figure.name, sweep.set]))


def draw(figure: Figure, sweep: Sweep, results: Path, target: Path) -> str:
    """Draw one figure into a PNG without the time and the version of matplotlib in it."""
    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    with unpacked(sweep, results) as runs, figures.paper_style("page", height=figure.height * rows):
        sheet, axes = plt.subplots(rows, columns, layout="constrained", squeeze=False)
        for panel, ax in zip(figure.panels, axes.flat, strict=False):
            shown = [run for run in runs if panel.runs(run)]
            if not shown:
                raise InputError(f"{sweep.label} has no run for the panel '{panel.title}' of {figure.name}")
            panel.draw(shown, ax)
            ax.set_title(panel.title)
        name = name_of(figure, sweep)
        sheet.savefig(target / f"{name}.png", dpi=130, metadata={"Software": None})
        plt.close(sheet)
    return name
