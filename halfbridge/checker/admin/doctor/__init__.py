"""`halfbridge doctor`: find faults of an installation, and the command that removes each.

`gather` asks brokers and this machine in parallel, with a time-out. `judge` is pure and turns the
answers into findings. `facts` defines both.
"""
