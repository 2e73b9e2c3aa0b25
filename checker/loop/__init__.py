"""The loop of one worker: reads half and op topic, applies the ledgers' plans, asks the groups.

`worker.py` holds the loop; each other file is one of its steps, or what one of its steps keeps.
Whatever touches Kafka, a thread or a clock is given as a port, so that the simulator runs these
files as they are shipped.
"""
