"""Random keys are tracked in the contract tests, which run every mechanism, labeler and kind of
training.
"""

import jax
import pytest


@pytest.fixture(autouse=True)
def used_once():
    """Fail where a key is used twice.

    Each jitted call is slower by it, so only `make test-all` has it everywhere.
    """
    with jax.debug_key_reuse(True):
        yield
