"""Audits an installation: what was decided against what came out.

    halfbridge spark audit --bootstrap-servers localhost:9092 --topic orders

The conservation law: every transaction is exactly one of committed, rolled back, discarded and
undecided; what was committed was delivered once, byte for byte and in order, or stands in the
dead-letter topic with the reason; and nothing else was delivered. docs/spark_audit.md says what
each finding means, and when it is sound.

    Kafka's rows ──▶ facts ──▶ sift ──▶ plain lives (nearly all)
                                 │
                                 └────▶ ruling ──▶ matching ──▶ verdict ──▶ findings
"""

from halfbridge.spark_jobs.audit.command import main

__all__ = ["main"]
