"""How charts look: colours, axes, and the few kinds of traces that sections share. Plain Plotly JSON, no drawing.

Names and labels that come from a run are escaped here, when a trace is created, so sections need not escape them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfl.analysis.colours import HEAT, PALETTE
from rayfl.analysis.report.blocks import Figure
from rayfl.analysis.report.text import plain

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_INK, _SOFT, _LINE = "#1c2430", "#55606e", "#e9edf1"
#: A Plotly colour scale from low to high.
SEQUENTIAL: list[list[Any]] = [[at / (len(HEAT) - 1), colour] for at, colour in enumerate(HEAT)]


@dataclass(frozen=True)
class Look:
    """How a label is drawn wherever it appears."""

    colour: str
    dash: str = "solid"


def looks(labels: Sequence[str], methods: Mapping[str, str]) -> dict[str, Look]:
    """Give each label its own combination of colour and dash, as long as there are enough of them.

    With more labels than colours, a method has one colour and its variants differ in their dashes.
    """
    if len(labels) <= len(PALETTE):
        return {label: Look(PALETTE[number]) for number, label in enumerate(labels)}
    names = list(dict.fromkeys(methods[label] for label in labels))
    if len(names) == 1:
        return {
            label: Look(PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)])
            for number, label in enumerate(labels)
        }
    variants: dict[str, int] = {}
    found = {}
    for label in labels:
        number, variant = names.index(methods[label]), variants.get(methods[label], 0)
        variants[methods[label]] = variant + 1
        dash = variant + number // len(PALETTE)
        found[label] = Look(PALETTE[number % len(PALETTE)], DASHES[dash % len(DASHES)])
    return found


def figure(traces: Sequence[Mapping[str, Any]], x: str = "", y: str = "", **layout: Any) -> Figure:
    """Return a figure with axis titles; `layout` adds keys to the common layout."""
    base: dict[str, Any] = {
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, Arial, sans-serif", "size": 13, "color": _INK},
        "margin": {"l": 62, "r": 16, "t": 12, "b": 46},
        "meta": {"narrow_margin": {"l": 50, "r": 8}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": list(PALETTE),
        "hoverlabel": {"font": {"size": 13}, "namelength": 60},
        "legend": {"orientation": "h", "x": 0, "yanchor": "top", "font": {"size": 12.5}},
        "xaxis": _axis(x),
        "yaxis": _axis(y),
        "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(255,255,255,0.85)", "color": "#9aa5b1", "activecolor": "#0b5cad"},
    }
    for key, value in layout.items():
        inside = isinstance(value, Mapping) and key in base
        base[key] = {**base[key], **value} if inside else value
    return {"data": list(traces), "layout": base}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return another axis in the common style."""
    return {**_axis(title), **more}


def line(x: Any, y: Any, name: str, look: Look, **more: Any) -> dict[str, Any]:
    """Return a line, with a dot at each point if there are few points."""
    points = len(x)
    trace = {
        "type": "scatter",
        "x": x,
        "y": y,
        "name": plain(name),
        "legendgroup": plain(name),
        "mode": "lines+markers" if points <= 25 else "lines",
        "line": {"color": look.colour, "width": 2, "dash": look.dash},
        "marker": {"size": 5, "color": look.colour},
    }
    return {**trace, **more}


def band(x: Any, low: Any, high: Any, name: str, look: Look, **more: Any) -> dict[str, Any]:
    """Return the area between two lines, in the colour of the line of that name; one legend entry toggles both."""
    x, low, high = (np.asarray(values, float) for values in (x, low, high))
    known = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[known], low[known], high[known]
    trace = {
        "type": "scatter",
        "x": np.concatenate([x, x[::-1]]),
        "y": np.concatenate([high, low[::-1]]),
        "fill": "toself",
        "fillcolor": transparent(look.colour, 0.16),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "name": plain(name),
        "legendgroup": plain(name),
    }
    return {**trace, **more}


def reversed_scale() -> list[list[Any]]:
    """Return the colour scale from high to low: for distances, where a low value means similar."""
    return [[1 - at, colour] for at, colour in reversed(SEQUENTIAL)]


def transparent(colour: str, share: float) -> str:
    """Return a colour of the form #rrggbb as a transparent one.

    >>> transparent("#0072b2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    red, green, blue = (int(colour[first : first + 2], 16) for first in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def _axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 13, "color": _SOFT}, "standoff": 10},
        "gridcolor": _LINE,
        "linecolor": "#c3ccd6",
        "zeroline": False,
        "automargin": True,
        "ticks": "",
        "tickfont": {"size": 12, "color": _SOFT},
    }
