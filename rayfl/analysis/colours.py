"""The colours of all figures: safe for readers who cannot distinguish red and green.

The palette is that of Okabe and Ito (2008) without black, which is used for means, and without yellow, which is too
light for lines on white; dark violet and brown replace them. Numbers beyond the palette get darker, then lighter
variants of the same colours, which not everyone can distinguish.
"""

import colorsys

#: Blue, orange, green, purple, sky blue, vermilion, dark violet, brown.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5b2a6e", "#7a5230")
INK, RULE, NOBODY = "#30363d", "#9aa5b1", "#e3e7eb"
#: From low to high, for heat maps of counts and shares.
HEAT = ("#ffffff", "#b9d7ea", "#3182bd", "#08306b")


def colour(number: int) -> str:
    """Return the colour of the n-th line, or of cluster n; the colour of "none" for a number below 0.

    >>> colour(0), colour(8) == colour(0), colour(24) == colour(0)
    ('#0072b2', False, True)
    """
    if number < 0:
        return NOBODY
    times, place = divmod(number % (3 * len(PALETTE)), len(PALETTE))
    return PALETTE[place] if times == 0 else _shaded(PALETTE[place], 0.62 if times == 1 else 1.3)


def _shaded(colour: str, by: float) -> str:
    """Return the colour with its lightness multiplied."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    shaded = colorsys.hls_to_rgb(hue, min(0.85, lightness * by), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in shaded)
