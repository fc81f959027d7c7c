"""Text and numbers in the form that the page needs: escaped for HTML, for JSON inside a script, and for Plotly.

A run folder may come from anybody, so each of its strings goes through one of these functions.
"""

import html
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Digits of a number in the page: more than a screen can show, and few enough to keep the page small.
DIGITS = 5
#: Names longer than this are cut: they come from folders and would break the layout.
LONGEST = 120


def escaped(text: object) -> str:
    """Return text that is safe in HTML, in elements and in quoted attributes.

    >>> escaped("<b>"), escaped('"')
    ('&lt;b&gt;', '&quot;')
    """
    return html.escape(printable(str(text)), quote=True)


def plain(text: object, longest: int = LONGEST) -> str:
    """Escape text so that Plotly shows it literally: Plotly interprets some tags and entities in names and labels.

    >>> plain("<a href='x'>R&D</a>")
    "&lt;a href='x'&gt;R&amp;D&lt;/a&gt;"
    """
    shown = cut(printable(str(text)), longest)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the text, shortened if it is too long.

    >>> cut("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def printable(text: str) -> str:
    """Replace control characters, which could hide or reverse what follows; line breaks become spaces.

    >>> printable("a\\nb\\x00c")
    'a b\\ufffdc'
    """
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\ufffd" for c in text)


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: nothing in it can close the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(compact(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def compact(value: Any) -> Any:
    """Convert a value to JSON types: arrays to lists, floats to few digits, NaN and infinity to null.

    >>> compact({"x": np.array([1 / 3, np.nan, 2.0])})
    {'x': [0.33333, None, 2]}
    """
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [compact(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [compact(item) for item in value]
    if isinstance(value, np.generic):
        return compact(value.item())
    if isinstance(value, float):
        return _short(value)
    if value is None or isinstance(value, str | int):
        return value
    if value != value or type(value).__name__ == "NAType":  # pandas' missing values
        return None
    raise TypeError(f"{type(value).__name__} has no place in a page")


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
