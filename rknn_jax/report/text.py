"""Numbers and settings as pages write them."""

import math
from typing import Any

from rknn_jax.privacy.guarantee import rounded_up


def plain(value: Any) -> Any:
    """Format a group of settings as text."""
    return (
        ", ".join(f"{name} {plain(inner)}" for name, inner in value.items() if inner is not None)
        if isinstance(value, dict)
        else value
    )


def percent(value: float | None, digits: int = 1) -> str:
    """Format an accuracy. 100.0% stands for exactly all."""
    if value is None:
        return "not known"
    return f"{(min(100 * value, 100 - 10.0**-digits) if value < 1 else 100):.{digits}f}%"


def epsilon_text(value: Any) -> str:
    """Format an epsilon with four significant digits, rounded up; "∞" if it is infinite.

    JSON holds infinity as text.
    """
    return "∞" if math.isinf(float(value)) else rounded_up(float(value), 4)


def delta_text(value: Any) -> str:
    """Format a delta with three significant digits, rounded up."""
    return rounded_up(float(value), 3)


def shortened(text: str, most: int = 60) -> str:
    """Cut a name that is too long for a table. Bytes that are not text become question marks."""
    whole = text.encode(errors="replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"
