"""What is guaranteed, how it composes, how a release draws its noise, and the ledger that
remembers what was spent.
"""
