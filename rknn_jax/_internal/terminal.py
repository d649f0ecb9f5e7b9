"""What the command line writes, and how it reads whole numbers such as 1e6."""

from rich.console import Console

err = Console(
    stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True
)  # Rich would take "[n, f]" for a style
out = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def tell(told: Console, name: str, text: str) -> None:
    """Print a line under a name; bytes of a file's name that are no text as their numbers."""
    told.print(f"{name:<11} ", style="bold cyan", end="")
    told.print(text.encode(errors="backslashreplace").decode())


def whole(name: str, number: float) -> int:
    """Return a whole number >= 1 that may be written as 1e6.

    Raises:
      ValueError: where it is none.
    """
    if not 1 <= number < 2**62 or number != int(number):
        raise ValueError(f"Expected a whole number --{name} >= 1, got --{name} {number:g}.")
    return int(number)
