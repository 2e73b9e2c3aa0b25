"""The ledger: which transactions are decided, which are not, and what must be written next.

Three rules hold in this package. The package only computes: no I/O, no clock, no log, no
randomness; `now_ms` is an argument. The package never guesses: its state follows only from the
records that it was given, so that a rebuild from the log comes to the same state. A plan is
prepared; then the plan is committed, or its ledger is dropped. No second plan is made in between.
"""
