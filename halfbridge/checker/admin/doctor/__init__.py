"""`halfbridge doctor`: what is wrong with an installation, and the command that mends it.

`gather` asks brokers and this machine, all at once and with a time-out; `judge` is pure and makes
findings of the answers; `codes` says what each finding means.
"""
