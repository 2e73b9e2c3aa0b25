"""The ledger: what is decided, what is not, and what must be written next.

Two rules hold in this package. It does nothing but compute: no I/O, no clock, no log, no
randomness; `now_ms` is an argument. And it never guesses: what it does follows from records it
was given, so that a rebuild from the log comes to the same state.
"""
