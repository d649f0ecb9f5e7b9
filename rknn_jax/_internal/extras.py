"""Optional parts of the package, and how a user gets one that is missing."""


class MissingExtraError(ImportError, ValueError):
    """A package of an optional part is not installed; the words say how to install it."""


def install(extra: str) -> str:
    """Return the command that installs an optional part, such as `embed`."""
    return f"pip install 'rknn-jax[{extra}]', or '.[{extra}]' in a checkout"
