"""Privacy guarantees, their composition, exact noise for releases, and the budget ledger."""
