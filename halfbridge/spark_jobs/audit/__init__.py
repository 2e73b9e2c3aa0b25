"""Audits an installation: compares decisions with deliveries.

    halfbridge spark audit --bootstrap-servers localhost:9092 --topic orders

The conservation law has three parts. Every transaction is exactly one of committed, rolled back,
discarded and undecided. The messages of a committed transaction were delivered once, unchanged and
in order, or are in the dead-letter topic with the reason. Nothing else was delivered.
docs/how-to/spark-audit.md says what each finding means, and when a finding is reliable. `run` calls
the steps, each of which is a module:

    Kafka's rows ──▶ facts ──▶ sift ──▶ plain transactions (nearly all)
                                 │
                                 └────▶ ruling ──▶ matching ──▶ verdict ──▶ findings

An incremental audit takes facts of earlier runs from `state`; `carried` says which.
"""
