"""The loop of one worker: reads half and op topic, writes the ledgers' plans, sends checks.

`worker.py` holds the loop; each other file is one step, or the state of one step. Kafka, threads
and clocks are ports, so that the simulator runs these files as they are shipped.
"""
