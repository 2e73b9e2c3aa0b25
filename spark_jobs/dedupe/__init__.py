"""Makes of an ingested table one in which each message of a transaction stands once."""

from halfbridge.spark_jobs.dedupe.command import main

__all__ = ["main"]
