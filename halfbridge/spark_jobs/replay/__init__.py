"""Sends the rows of a table or of a range of a topic to a topic again, each row exactly once."""

from halfbridge.spark_jobs.replay.command import main

__all__ = ["main"]
