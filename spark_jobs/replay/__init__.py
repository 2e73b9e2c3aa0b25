"""Sends rows of a table, or of a range of a topic, into a topic once more, each exactly once."""

from halfbridge.spark_jobs.replay.command import main

__all__ = ["main"]
