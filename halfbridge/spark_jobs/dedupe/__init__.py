"""Makes a table with each message of a transaction once, from an ingested table."""

from halfbridge.spark_jobs.dedupe.command import main

__all__ = ["main"]
