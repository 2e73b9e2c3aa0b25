"""The ledger: which transactions are decided, which are not, and what must be written next.

The package only computes: no I/O, clock, log or randomness. Its state follows only from the records
that it was given, so a rebuild from the log has the same state. A plan is prepared, and then
committed, or its ledger is dropped; no second plan is made in between.
"""
