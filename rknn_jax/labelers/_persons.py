"""Persons of private records: their numbers, and one record of each.

`Records.clients` names the person of each record. A neighboring data set has other records of one
person, and perhaps another number of them. So nothing here depends on more than one person, but for
the number of persons. That number is public under replace-one.
"""

import jax
import numpy as np

from rknn_jax.privacy import contributions
from rknn_jax.types import Array, Records


def numbered(private: Records) -> np.ndarray:
    """Return the number of each record's person, int64 `[n]`, from 0 on without gaps.

    Raises:
      ValueError: If the records name no persons.
    """
    return np.unique(_names(private), return_inverse=True)[1].astype(np.int64)


def num_persons(private: Records) -> int:
    """Return the number of persons.

    Raises:
      ValueError: If the records name no persons.
    """
    return len(np.unique(_names(private)))


def one_each(key: jax.Array, private: Records) -> np.ndarray:
    """Draw one record of each person, in the order of the persons' names.

    A person's draw depends on the key, the name, and the number of that person's records.

    Args:
      key: Random key, which is consumed.
      private: Private records.

    Returns:
      int64 `[num_persons]`, rows of the records.

    Raises:
      ValueError: If the records name no persons.
    """
    person = numbered(private)
    names = _names(private).astype(np.int64).astype(np.uint64)
    seed = int(jax.random.bits(key))
    drawn = np.flatnonzero(contributions.limited(person, names, 1, seed).units)
    return drawn[np.argsort(person[drawn], kind="stable")]


def as_numbers(person: Array, num_records: int) -> np.ndarray:
    """Return names of persons as `Records.clients`, int32 `[n]`.

    Args:
      person: Name of each record's person, integers or strings `[n]`.
      num_records: Number of records n.

    Raises:
      ValueError: If there is not one name for each record, or names are neither kind.
    """
    names = np.asarray(person)
    if names.shape != (num_records,) or names.dtype.kind not in "iuSU":
        raise ValueError(
            f"Expected person [{num_records}] of integers or strings, one for each private row, "
            f"got {names.dtype} of shape {names.shape}."
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


def _names(private: Records) -> np.ndarray:
    if private.clients is None:
        raise ValueError(
            "Expected private records with clients for unit=person, got clients=None; set "
            "Records.clients to the person of each record, or use unit=record."
        )
    names = np.asarray(private.clients)
    if names.shape != (len(private.labels),):
        raise ValueError(
            f"Expected one client for each of {len(private.labels)} records, got shape "
            f"{names.shape}."
        )
    return names
