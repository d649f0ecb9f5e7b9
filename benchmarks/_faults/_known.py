"""A fault as it is written down, and the tests that several faults have in common."""

from typing import NamedTuple


class Known(NamedTuple):
    """A fault.

    Attributes:
      kind: Kind of fault.
      words: The fault.
      path: File.
      before: Text of the file, which occurs once.
      after: Text in its place.
      tests: Words that choose pytest's tests.
    """

    kind: str
    words: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


SUMS = ("tests/test_prototypes.py",)
PAID = ("tests/test_payers.py",)
MASKS = ("tests/test_secure_sum.py",)
SHARDS = ("tests/test_shards.py", "tests/test_release_labelers.py")
LEDGER = ("tests/test_ledger.py",)
CLIENT = ("tests/test_federation.py", "tests/test_federation_sums.py", "tests/test_binomial.py")
PERSONS = ("tests/test_persons.py", "tests/contracts/test_persons.py")
CENTRAL = ("tests/test_mechanisms.py", "tests/contracts/test_mechanisms.py")
