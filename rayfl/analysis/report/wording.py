"""Numbers and names in sentences and tables."""

from collections.abc import Sequence

#: Shown in place of a missing value.
NOTHING = "\u2013"

_UNITS = ("B", "kB", "MB", "GB", "TB")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with few digits, or a dash if it is missing.

    >>> number(0.98765), number(12345.6), number(None), number(0.00001234)
    ('0.9877', '12346', '–', '1.234e-05')
    """
    if value is None or value != value:
        return NOTHING
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 0.001 or size == 0:
        return f"{value:.{digits}f}" if size < 10 else f"{value:.2f}"
    return f"{value:.{digits}g}"


def signed(value: float, digits: int = 4) -> str:
    """Return a difference with its sign.

    >>> signed(0.25), signed(-0.25)
    ('+0.2500', '\u22120.2500')
    """
    return ("+" if value >= 0 else "\u2212") + number(abs(value), digits)


def plus_minus(mean: float, std: float | None) -> str:
    """Return a mean with its standard deviation, if there is one.

    >>> plus_minus(0.5, 0.01), plus_minus(0.5, None)
    ('0.5000 ± 0.0100', '0.5000')
    """
    return number(mean) if std is None or std != std else f"{number(mean)} ± {number(std)}"


def count(n: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "run"), count(2, "seed"), count(3, "study", "studies")
    ('1 run', '2 seeds', '3 studies')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return names as part of a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"] * 9, most=2)
    ('a, b and c', 'a, a and 7 others')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def metric_name(metric: str) -> str:
    """Return a metric's name as it is written in text.

    >>> metric_name("macro_f1"), metric_name("mse")
    ('macro-F1', 'MSE')
    """
    known = {"macro_f1": "macro-F1", "mse": "MSE", "mae": "MAE", "rmse": "RMSE", "r2": "R²", "auroc": "AUROC"}
    known["accuracy_worst10"] = "accuracy of the worst 10 %"
    return known.get(metric, metric.replace("_", " "))


def quantity(amount: float) -> str:
    """Return a number of bytes in a suitable unit.

    >>> quantity(1_500_000), quantity(12)
    ('1.5 MB', '12 B')
    """
    power = 0
    while amount >= 1000 and power < len(_UNITS) - 1:
        amount, power = amount / 1000, power + 1
    return f"{amount:.1f} {_UNITS[power]}" if power else f"{amount:.0f} B"
