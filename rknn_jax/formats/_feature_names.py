"""Names of the columns of features, where the caller gives none."""

from collections.abc import Sequence

from rknn_jax._internal.option_names import option
from rknn_jax.formats import EMBEDDINGS, Columns, FormatError, absent
from rknn_jax.records import features as rules


def choose(kinds: dict[str, str], names: Sequence[str]) -> list[str]:
    """Return the names of the columns of features, by `records.features`.

    Args:
      kinds: Kinds of columns by their names, for `records.features.choose`.
      names: Names of all columns, for the error.

    Raises:
      AbsentError: If there is none.
      FormatError: If it is not clear which they are.
    """
    try:
        found = rules.choose(kinds)
    except ValueError as error:
        raise FormatError(str(error)) from error
    if not found:
        raise absent([EMBEDDINGS], names)
    return found


def raw_name(names: Sequence[str], columns: Columns) -> str:
    """Return the name of the only column beside the label.

    Raises:
      FormatError: If there are others.
    """
    found = [name for name in names if name not in columns.aside]
    if len(found) != 1:
        raise FormatError(
            f"Expected one column of records beside the label {columns.label!r}, got "
            f"{', '.join(found) or 'none'}; name it with {option('embedding')}."
        )
    return found[0]
