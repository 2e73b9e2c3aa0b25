"""Shows undecided transactions, by producer group and real topic.

    halfbridge spark stuck --bootstrap-servers localhost:9092 --older-than 10m

It makes a report on the present content of the topics, or runs as a stream that keeps a table of
every transaction's state up to date (`--table`, `--checkpoint`).
docs/how-to/spark-audit.md has more.
"""

from halfbridge.spark_jobs.stuck.command import main

__all__ = ["main"]
