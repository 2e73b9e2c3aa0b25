"""Kafka in the memory of one process: brokers, clients, threads and time, all deterministic.

Nothing is imported here: `halfbridge.testkit.memory.machine` is where to begin.
"""
