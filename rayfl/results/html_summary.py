"""How a notebook shows a run: a small table and the curve of its main metric. All text in it is escaped."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rayfl.results.status import last_value, main_metric, method_with_addons

if TYPE_CHECKING:
    from rayfl.results.reader import Run

_WIDTH, _HEIGHT, _MARGIN = 360, 90, 6
_CELL = "text-align:left;padding:1px 12px 1px 0;border:none"


def summary_html(run: "Run") -> str:
    """Return HTML without scripts, style sheets or external resources."""
    rows = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in _facts(run).items()
    )
    return f'<div><table style="border:none">{rows}</table>{_curve(run)}</div>'


def _facts(run: "Run") -> dict[str, str]:
    config, rounds = run.config, run.rounds
    stopped = run.stopped_early
    progress = f"{len(rounds)} of {config.rounds}"
    facts = {
        "run": run.path,
        "method": method_with_addons(config),
        "data": f"{config.data.source}, {config.partition.kind} partition",
        "model": config.model.name,
        "seed": str(config.seed),
        "rounds": f"{progress}, stopped early: {stopped.reason}" if stopped else progress,
    }
    for name in rounds.columns:
        if f"{name}_mean" in rounds.columns and (value := last_value(rounds, name)) is not None:
            facts[name] = f"{value:.4f}"
    for name, column, form in (
        ("clusters", "clusters", ".0f"),
        ("ARI", "ari", ".3f"),
    ):
        if (value := last_value(rounds, column)) is not None:
            facts[name] = format(value, form)
    if len(rounds) and rounds["seconds_total"].notna().any():
        facts["seconds per round"] = f"{rounds['seconds_total'].median():.2f}"
    return facts


def _curve(run: "Run") -> str:
    """Return an SVG of the main metric over the rounds; an empty string before the second evaluation."""
    metric = main_metric(run.rounds)
    measured = run.rounds[["round", metric]].dropna() if metric is not None else run.rounds.head(0)
    if metric is None or len(measured) < 2:
        return ""
    numbers, values = measured["round"].tolist(), measured[metric].tolist()
    low, high = min(values), max(values)
    points = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in _thinned(
            [
                (
                    _MARGIN + (n - numbers[0]) / (numbers[-1] - numbers[0]) * (_WIDTH - 2 * _MARGIN),
                    _HEIGHT - _MARGIN - ((v - low) / (high - low) if high > low else 0.5) * (_HEIGHT - 2 * _MARGIN),
                )
                for n, v in zip(numbers, values, strict=True)
            ]
        )
    )
    label = f"{metric} from {low:.4f} to {high:.4f}, rounds {numbers[0]} to {numbers[-1]}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{escape(label)}"><title>{escape(label)}</title>'
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" fill="none" stroke="#999"/>'
        f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="1.5"/></svg>'
        f'<div style="font-size:smaller">{escape(label)}</div>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return about one point per pixel at most, always with the last point: notebooks store what they show."""
    step = -(-len(points) // _WIDTH)
    return [*points[:-1:step], points[-1]]
