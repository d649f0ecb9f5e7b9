"""Every audit command of README and docs, run as a user runs it.

Each is a program of its own, with an index of ledgers that works, and none of the patches of
tests/conftest.py. The list is read from the documents, so that a new command is run too.
"""

import re

FEWER = {"--release": 6, "--labeler": 40, "train.audit": 40}
"""Runs of each input in place of minutes of them, by a word of the command; 40 are the least that
a verdict takes.
"""

VERDICT = re.compile(r"BROKEN|Not broken|Inconclusive")
