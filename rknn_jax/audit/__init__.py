"""Audits of privacy guarantees: games, distinguishers, and lower bounds on epsilon."""
