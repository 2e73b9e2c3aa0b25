"""Writes the records of real topics to a table of raw rows, each record exactly once."""

from halfbridge.spark_jobs.ingest.command import main

__all__ = ["main"]
