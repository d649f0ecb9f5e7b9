"""Warnings that depend on private records: never errors, whatever a program's filters say."""

import warnings


def warn_owner(message: str, stacklevel: int = 2) -> None:
    """Warn the owner of private records of what they hold.

    A filter that turns warnings into errors would let one record decide whether there is a release,
    and lose one that is paid for. The warning is then shown instead.

    Args:
      message: A sentence or more.
      stacklevel: As for `warnings.warn`, from the caller.
    """
    try:
        warnings.warn(message, stacklevel=stacklevel + 1)
    except UserWarning:
        warnings.showwarning(UserWarning(message), UserWarning, __file__, 0)
