"""Writes real topics to a table of raw rows, each record exactly once."""

from spark_jobs.ingest.command import main

__all__ = ["main"]
