"""Terminal output of the command line, and parsing of whole numbers such as 1e6."""

from rich.console import Console

# Markup is off because Rich would take "[n, f]" for a style.
err = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
out = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def tell(told: Console, name: str, text: str) -> None:
    """Print a line under a name. Bytes of a file name that are no text appear as their numbers."""
    told.print(f"{name:<11} ", style="bold cyan", end="")
    told.print(text.encode(errors="backslashreplace").decode())


def whole(name: str, number: float) -> int:
    """Return a whole number >= 1 that may be written as 1e6.

    Raises:
      ValueError: If the number is not whole or below 1.
    """
    if not 1 <= number < 2**62 or number != int(number):
        raise ValueError(f"Expected a whole number --{name} >= 1, got --{name} {number:g}.")
    return int(number)
